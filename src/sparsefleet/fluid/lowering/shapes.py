"""Shapes that are known while a program is built, by running it on tensors without data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from sparsefleet.fluid.call_site import ProgramError
from sparsefleet.fluid.dtypes import dtype_name
from sparsefleet.fluid.lowering.registry import OpDef, find_op

if TYPE_CHECKING:
    from sparsefleet.fluid.framework.block import Block
    from sparsefleet.fluid.framework.operator import Operator
    from sparsefleet.fluid.variable import Variable

__all__ = ["infer_outputs", "operator_def", "slot_values"]

# Stand for -1. Divisible by what sizes are made of, so that a reshape of them goes through, and
# no sizes that a network has. A size that differs between the two is not known.
_PROBES = (720_720, 1_441_440)


def operator_def(op: Operator) -> OpDef:
    """The definition of an operator; ProgramError at the user's line if there is none."""
    found = find_op(op.type)
    if found is None:
        raise ProgramError.at(
            op.site, op.type, "an operator that is not supported; see docs/coming_from_fluid.md"
        )
    return found


def slot_values(definition: OpDef, op: Operator, value_of: Any) -> list[Any]:
    """What the function takes by place: `value_of(name)` for each input, slot by slot."""
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
            raise ProgramError.at(op.site, op.type, f"its input {slot.name} is missing")
    return values


def infer_outputs(block: Block, op: Operator) -> None:
    """Gives the outputs of `op` their shape, dtype and LoD level."""
    definition = operator_def(op)
    if definition.in_place:
        return
    outputs = [
        block.visible_var(name) for slot in definition.outputs for name in op.output(slot.name)
    ]
    inputs = [block.visible_var(name) for name in op.input_arg_names]
    found: Sequence[tuple[int, ...]] | None = None
    if definition.infer is not None:
        shapes = slot_values(definition, op, lambda name: block.visible_var(name).shape)
        found = definition.infer(*shapes, **_settings(definition, op))
    if found is not None:
        for variable, shape in zip(outputs, found, strict=False):
            variable.shape = shape
    else:
        _probe(block, definition, op, inputs, outputs)
    if definition.lod_rule(op.attrs) in ("share", "rows"):
        level = max((variable.lod_level for variable in inputs), default=0)
        for variable in outputs:
            variable.lod_level = level


def _probe(
    block: Block, definition: OpDef, op: Operator, inputs: list[Variable], outputs: list[Variable]
) -> None:
    known = {size for variable in inputs for size in variable.shape if size > 0}
    is_open = any(-1 in variable.shape for variable in inputs)
    tries: list[tuple[int, ...]] = [_PROBES] if is_open else [(1,)]
    # A batch that must be as large as something that is known; the first size stays open.
    tries += [(size,) for size in sorted(known)] if is_open else []
    first: Exception | None = None
    for sizes in tries:
        try:
            runs = [_meta_run(block, definition, op, size) for size in sizes]
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            first = first or error
            continue
        for index, variable in enumerate(outputs):
            tensors = [run[index] for run in runs]
            shape = _common_sizes([tuple(tensor.shape) for tensor in tensors])
            variable.shape = (-1, *shape[1:]) if shape[:1] == sizes and is_open else shape
            variable.dtype = dtype_name(tensors[0].dtype)
        return
    given = ", ".join(f"{variable.name} {list(variable.shape)}" for variable in inputs)
    reason = str(first).replace("720720", "-1").partition("\n")[0]
    raise ProgramError.at(op.site, op.type, f"does not fit its inputs {given}: {reason}") from first


def _meta_run(block: Block, definition: OpDef, op: Operator, open_size: int) -> list[torch.Tensor]:
    def empty(name: str) -> torch.Tensor:
        variable = block.visible_var(name)
        shape = [open_size if size < 0 else size for size in variable.shape]
        return torch.empty(shape, dtype=getattr(torch, variable.dtype), device="meta")

    result = definition.function(
        *slot_values(definition, op, empty), **_settings(definition, op, device="meta")
    )
    return flat_outputs(result)


def flat_outputs(result: Any) -> list[Any]:
    """What a function returned as one list: outputs slot by slot, `*` slots unfolded."""
    if not isinstance(result, (tuple, list)):
        return [result]
    return [item for part in result for item in (part if isinstance(part, list) else [part])]


def _settings(definition: OpDef, op: Operator, **extra: Any) -> dict[str, Any]:
    found = {name: value for name, value in op.attrs.items() if name in definition.settings}
    found.update((name, value) for name, value in extra.items() if name in definition.settings)
    return found


def _common_sizes(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True))
