"""Infer shapes while a program is built, with rules or by running operators on empty tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from sparsefleet.fluid.framework.call_site import ProgramError
from sparsefleet.fluid.framework.dtypes import dtype_name
from sparsefleet.fluid.lowering.registry import OpDef, Shape, ShapeRule, find_op

if TYPE_CHECKING:
    from sparsefleet.fluid.framework.block import Block
    from sparsefleet.fluid.framework.operator import Operator
    from sparsefleet.fluid.framework.variable import Variable

__all__ = ["infer_outputs", "operator_def", "slot_values"]

SizeOf = Callable[["Variable", int], int]
"""A function that returns the number used in place of a variable's unknown size along an axis."""

_FAILURES = (RuntimeError, ValueError, IndexError, TypeError, AttributeError, AssertionError)


def operator_def(op: Operator) -> OpDef:
    """Return an operator's definition. Raises ProgramError, with the user's line, if unknown."""
    found = find_op(op.type)
    if found is None:
        raise ProgramError.at(
            op.site, op.type, "operator not supported; see docs/coming_from_fluid.md"
        )
    return found


def slot_values(definition: OpDef, op: Operator, value_of: Any) -> list[Any]:
    """Return the positional arguments: `value_of(name)` for each input, slot by slot."""
    values: list[Any] = []
    for slot in definition.inputs:
        names = op.inputs.get(slot.name, [])
        if slot.many:
            values.append([value_of(name) for name in names])
        elif names:
            values.append(value_of(names[0]))
        elif slot.optional:
            values.append(None)
        else:
            raise ProgramError.at(op.site, op.type, f"input {slot.name} is missing")
    return values


def infer_outputs(block: Block, op: Operator) -> None:
    """Set the shape, dtype and LoD level of the outputs of `op`."""
    definition = operator_def(op)
    if definition.in_place:
        return
    outputs = [
        block.visible_var(name) for slot in definition.outputs for name in op.output(slot.name)
    ]
    inputs = [block.visible_var(name) for name in op.input_arg_names]
    if not _by_rule(block, definition, op, inputs, outputs):
        _probe(block, definition, op, inputs, outputs)
    if definition.lod_rule(op.attrs) in ("share", "rows"):
        level = max((variable.lod_level for variable in inputs), default=0)
        for variable in outputs:
            variable.lod_level = level


def _by_rule(
    block: Block, definition: OpDef, op: Operator, inputs: list[Variable], outputs: list[Variable]
) -> bool:
    """Set the output shapes with the operator's rule; return whether there was one that applies."""
    rule = definition.shape
    found: Sequence[Shape] | None = None
    if rule is not None and not rule.only_floats:
        shapes = slot_values(definition, op, lambda name: block.visible_var(name).shape)
        try:
            found = rule.function(*shapes, **op.attrs)
        except ValueError as error:
            raise _misfit(op, inputs, error) from error
        if found is not None:
            _set_outputs(outputs, found, rule, inputs[0].dtype)
            return True
    if found is None and definition.infer is not None:
        shapes = slot_values(definition, op, lambda name: block.visible_var(name).shape)
        found = definition.infer(*shapes, **_settings(definition, op))
    if found is None:
        return _by_float_rule(block, definition, op, outputs)
    for variable, shape in zip(outputs, found, strict=False):
        variable.shape = shape
    return True


def _by_float_rule(block: Block, definition: OpDef, op: Operator, outputs: list[Variable]) -> bool:
    rule = definition.shape
    if rule is None or not rule.only_floats:
        return False
    first = op.input(definition.inputs[0].name)
    dtype = block.visible_var(first[0]).dtype if first else ""
    if not dtype.startswith("float"):
        return False
    wanted = "int" if rule.takes_indices else dtype
    others = [name for name in op.input_arg_names if name != first[0]]
    if any(not block.visible_var(name).dtype.startswith(wanted) for name in others):
        return False  # the operator itself reports the problem
    shapes = slot_values(definition, op, lambda name: block.visible_var(name).shape)
    found = rule.function(*shapes, **op.attrs)
    if found is None:
        return False
    _set_outputs(outputs, found, rule, dtype)
    return True


def _set_outputs(
    outputs: list[Variable], shapes: Sequence[Shape], rule: ShapeRule, dtype: str
) -> None:
    for index, variable in enumerate(outputs):
        variable.dtype = (rule.dtypes[index] if index < len(rule.dtypes) else "") or dtype
    for variable, shape in zip(outputs, shapes, strict=False):
        variable.shape = shape


def _probe(
    block: Block, definition: OpDef, op: Operator, inputs: list[Variable], outputs: list[Variable]
) -> None:
    """Run the operator on tensors without data, with numbers standing in for unknown sizes.

    An output size that depends on these numbers is unknown. Several choices are tried until the
    operator accepts one: a different number for each size, one number per axis, one number for all
    sizes, and finally known sizes.
    """
    key = _probe_key(op, inputs)
    known = None if key is None else _probed.get(key)
    if known is not None:
        for variable, (shape, dtype) in zip(outputs, known, strict=True):
            variable.shape, variable.dtype = shape, dtype
        return
    is_open = any(-1 in variable.shape for variable in inputs)
    first: Exception | None = None
    for pair in _assignments(inputs) if is_open else [(lambda *_: 1,)]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # sizes that the operator rejects
                runs = [_meta_run(block, definition, op, size_of) for size_of in pair]
        except _FAILURES as error:
            first = first or error
            continue
        for index, variable in enumerate(outputs):
            tensors = [run[index] for run in runs]
            shape = _common_sizes([tuple(tensor.shape) for tensor in tensors])
            is_guess = is_open and len(pair) == 1 and shape[:1] == (pair[0](variable, 0),)
            variable.shape = (-1, *shape[1:]) if is_guess else shape
            variable.dtype = dtype_name(tensors[0].dtype)
        if key is not None:
            if len(_probed) >= _MOST_PROBED:
                _probed.clear()
            _probed[key] = [(variable.shape, variable.dtype) for variable in outputs]
        return
    assert first is not None
    raise _misfit(op, inputs, first) from first


_probed: dict[Any, list[tuple[tuple[int, ...], str]]] = {}
_MOST_PROBED = 10_000


def _probe_key(op: Operator, inputs: Sequence[Variable]) -> Any:
    """Return a cache key for everything that a probe's result depends on, or None if it cannot be
    hashed.
    """
    if not all("block" not in name and _is_plain(value) for name, value in op.attrs.items()):
        return None
    numbers: dict[str, int] = {}  # which inputs are the same variable
    for variable in inputs:
        numbers.setdefault(variable.name, len(numbers))
    given = {variable.name: (variable.shape, variable.dtype) for variable in inputs}
    slots = tuple((slot, tuple(map(numbers.get, names))) for slot, names in op.inputs.items())
    outputs = tuple((slot, len(names)) for slot, names in op.outputs.items())
    return op.type, slots, outputs, tuple(given.values()), repr(op.attrs)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (int, float, str))


def _misfit(op: Operator, inputs: Sequence[Variable], error: Exception) -> ProgramError:
    given = ", ".join(f"{variable.name} {list(variable.shape)}" for variable in inputs)
    reason = str(error).partition("\n")[0]
    return ProgramError.at(op.site, op.type, f"does not match the inputs {given}: {reason}")


def _assignments(inputs: Sequence[Variable]) -> Iterator[tuple[SizeOf, ...]]:
    places: dict[tuple[str, int], int] = {}
    for variable in inputs:
        for axis, size in enumerate(variable.shape):
            if size < 0:
                places.setdefault((variable.name, axis), len(places))
    # Divisible by common divisors of sizes; small if many are multiplied.
    most = max(sum(size < 0 for size in variable.shape) for variable in inputs)
    unit = 5040 if most <= 2 else 720 if most == 3 else 24

    def each(start: int) -> SizeOf:
        return lambda variable, axis: unit * (places[variable.name, axis] + start)

    def by_axis(start: int) -> SizeOf:
        return lambda variable, axis: unit * (axis - len(variable.shape) + start)

    if len(places) > 1:
        yield each(11), each(11 + len(places))
        yield by_axis(31), by_axis(61)
    yield (lambda *_: 11 * unit), (lambda *_: 13 * unit)
    for known in sorted({size for variable in inputs for size in variable.shape if size > 0}):
        yield (lambda *_, known=known: known,)


def _meta_run(block: Block, definition: OpDef, op: Operator, size_of: SizeOf) -> list[torch.Tensor]:
    def empty(name: str) -> torch.Tensor:
        variable = block.visible_var(name)
        shape = [
            size_of(variable, axis) if size < 0 else size
            for axis, size in enumerate(variable.shape)
        ]
        return torch.empty(shape, dtype=getattr(torch, variable.dtype), device="meta")

    result = definition.function(
        *slot_values(definition, op, empty), **_settings(definition, op, device="meta")
    )
    return flat_outputs(result)


def flat_outputs(result: Any) -> list[Any]:
    """Flatten a function's results, slot by slot.

    The variables of a `*` slot become separate items.
    """
    if not isinstance(result, (tuple, list)):
        return [result]
    return [item for part in result for item in (part if isinstance(part, list) else [part])]


def _settings(definition: OpDef, op: Operator, **extra: Any) -> dict[str, Any]:
    found = {name: value for name, value in op.attrs.items() if name in definition.settings}
    found.update((name, value) for name, value in extra.items() if name in definition.settings)
    return found


def _common_sizes(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    if len({len(shape) for shape in shapes}) != 1:
        raise ValueError(f"the output's number of axes depends on unknown sizes: {shapes}")
    return tuple(sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True))
