"""Add operators that run their own block, on nested lists, tuples and dicts of variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sparsefleet.fluid.framework import Block, ProgramError, Variable, call_site
from sparsefleet.fluid.lowering.body import Frame, Held, RunBody
from sparsefleet.fluid.lowering.registry import op

__all__ = [
    "assert_same_structure",
    "convert_shape_to_list",
    "convert_to_list",
    "copy_mutable_vars",
    "flatten",
    "hold_mutable_vars",
    "is_sequence",
    "map_structure",
    "pack_sequence_as",
]


Tensor = torch.Tensor


def flatten(structure: Any) -> list[Any]:
    """Return the leaves of a structure in order; a dict's leaves are sorted by key.

    >>> flatten({"b": [1, 2], "a": 3})
    [3, 1, 2]
    """
    if isinstance(structure, Mapping):
        return [leaf for key in sorted(structure) for leaf in flatten(structure[key])]
    if isinstance(structure, (list, tuple)):
        return [leaf for part in structure for leaf in flatten(part)]
    return [structure]


def pack_sequence_as(structure: Any, leaves: Sequence[Any]) -> Any:
    """Return a copy of `structure` in which its leaves are replaced by `leaves`.

    >>> pack_sequence_as({"b": [1, 2], "a": 3}, "xyz")
    {'b': ['y', 'z'], 'a': 'x'}
    """
    return _pack(structure, iter(leaves))


def _pack(structure: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(structure, Mapping):
        made = {key: _pack(structure[key], leaves) for key in sorted(structure)}
        return {key: made[key] for key in structure}
    if isinstance(structure, (list, tuple)):
        parts = [_pack(part, leaves) for part in structure]
        named = hasattr(structure, "_fields")
        return type(structure)(*parts) if named else type(structure)(parts)
    return next(leaves)


def map_structure(function: Callable[..., Any], *structures: Any) -> Any:
    """Apply the function to corresponding leaves; return the first argument's structure.

    >>> map_structure(lambda x, y: x + y, [1, (2, 3)], [10, (20, 30)])
    [11, (22, 33)]
    """
    columns = [flatten(structure) for structure in structures]
    return pack_sequence_as(structures[0], [function(*row) for row in zip(*columns, strict=True)])


def _unchanged(*shapes: Any, **settings: Any) -> list[tuple[int, ...]]:
    del shapes, settings
    return []


@op("while", "X* Condition", "Out*", lod="none", infer=_unchanged)
def run_while(frame: Frame, body: RunBody, *, condition: str, results: list[str]) -> list[Held]:
    """Run the body while the condition holds; the body updates the condition."""
    while _truth(frame, condition):
        frame |= body(frame)
    return [frame.get(name, (None, ())) for name in results]


@op("conditional_block", "X* Condition*", "Out*", lod="none", infer=_unchanged)
def conditional_block(
    frame: Frame, body: RunBody, *, condition: str, results: list[str]
) -> list[Held]:
    """Run the body once if the condition holds; otherwise the results keep their old values."""
    if _truth(frame, condition):
        frame |= body(frame)
    return [frame.get(name, (None, ())) for name in results]


def _truth(frame: Frame, name: str) -> bool:
    value = frame[name][0]
    if value is None or value.numel() != 1:
        found = "no value" if value is None else f"shape {list(value.shape)}"
        raise ValueError(f"the condition '{name}' must have one element, got {found}")
    return bool(value)


@op("recurrent", "X* Sequences* Initial*", "Out*", lod="none", infer=_unchanged)
def recurrent(
    frame: Frame,
    body: RunBody,
    *,
    sequences: list[str],
    steps: list[str],
    initial: list[str],
    before: list[str],
    after: list[str],
    step_outputs: list[str],
) -> list[Held]:
    """Run the body for each element of the sequences along their first axis.

    steps: names by which the body refers to the elements. initial, before, after: a memory's
    initial value and its names in the body before and after the step. Returns the stacked step
    outputs.
    """
    lengths = {len(frame[name][0]) for name in sequences}
    if len(lengths) != 1:
        raise ValueError(f"sequences must have the same length, got {sorted(lengths)}")
    memories = [frame[name] for name in initial]
    found: list[list[Tensor]] = [[] for _ in step_outputs]
    for time in range(lengths.pop()):
        inner = dict(zip(before, memories, strict=True))
        inner |= {
            step: (frame[name][0][time], ()) for step, name in zip(steps, sequences, strict=True)
        }
        made = body(frame | inner)
        memories = [made[name] for name in after]
        for values, name in zip(found, step_outputs, strict=True):
            values.append(made[name][0])
    if not all(found):
        raise ValueError("sequences must not be empty")
    return [(torch.stack(values), ()) for values in found]


@op("select_input", "X* Mask", lod="function", infer=lambda shapes, _: shapes[:1])
def select_input(values: list[Any], mask: Tensor, *, lods: list[Any]) -> Held:
    """Return the value whose index is `mask`."""
    place = int(mask)
    return values[place], lods[0][place]


@op(
    "select_output",
    "X Mask",
    "Out*",
    lod="function",
    infer=lambda x, _, *, count, **__: [x] * count,
)
def select_output(x: Any, mask: Tensor, *, lods: list[Any], count: int) -> tuple[Any, Any]:
    """Return a list of `count` items: the value at index `mask`, and None elsewhere."""
    place = int(mask)
    if not 0 <= place < count:
        raise ValueError(f"mask must be in 0..{count - 1}, got {place}")
    return [[x if number == place else None for number in range(count)]], lods[0]


def outer_names(block: Block) -> tuple[list[str], list[str]]:
    """Return the variables in enclosing blocks that this block reads, and those that it writes."""
    reads = [name for op in block.ops for name in op.input_arg_names if name not in block.vars]
    writes = [name for op in block.ops for name in op.output_arg_names if name not in block.vars]
    return list(dict.fromkeys(reads)), list(dict.fromkeys(writes))


def moved_out(body: Block, variable: Variable) -> Variable:
    """Return the variable. If the body computed it from outer variables, move its operators
    outside.

    This lets a memory start with `states[i]` even if that expression is written inside the step.
    """
    around = body.parent
    assert around is not None
    if variable.name not in body.vars:
        return variable
    makers = [op for op in body.ops if variable.name in op.output_arg_names]
    if len(makers) != 1:
        raise ProgramError.at(
            call_site(),
            f"variable '{variable.name}'",
            "the initial value of a memory must be computed outside the steps",
        )
    for name in makers[0].input_arg_names:
        moved_out(body, body.visible_var(name))
    body.ops.remove(makers[0])
    around.ops.append(makers[0])
    for name in makers[0].output_arg_names:
        around.add_var(body.vars.pop(name))
    return variable


def append_with_body(
    type: str,
    body: Block,
    inputs: Mapping[str, Sequence[Variable]],
    attrs: Mapping[str, Any],
    outputs: Sequence[str] | None = None,
) -> None:
    """Add the operator for a finished body. By default, its outputs are the body's outputs.

    Variables that the body writes are also inputs, since they keep their values if it does not run.
    """
    around = body.parent
    assert around is not None
    reads, writes = outer_names(body)
    results = writes if outputs is None else list(outputs)
    around.append_op(
        type,
        {"X": list(dict.fromkeys(reads + writes)), **inputs},
        {"Out": results},
        {"sub_block": body.idx, "results": results, **attrs},
    )


def is_sequence(seq: Any) -> bool:
    """Return whether the value is a list, tuple or dict.

    >>> is_sequence([1]), is_sequence("text")
    (True, False)
    """
    return isinstance(seq, (Mapping, Sequence)) and not isinstance(seq, (str, bytes))


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True) -> None:
    """Raise ValueError if two structures differ, or TypeError if their types differ.

    >>> assert_same_structure([1, (2, 3)], [4, (5, 6)])
    """
    if is_sequence(nest1) != is_sequence(nest2):
        raise ValueError(f"structures differ: {nest1!r} and {nest2!r}")
    if not is_sequence(nest1):
        return
    if check_types and type(nest1) is not type(nest2):
        raise TypeError(
            f"structures differ: {type(nest1).__name__} {nest1!r} and "
            f"{type(nest2).__name__} {nest2!r}"
        )
    if len(nest1) != len(nest2):
        raise ValueError(f"structures differ: {len(nest1)} and {len(nest2)} parts")
    if isinstance(nest1, Mapping):
        if set(nest1) != set(nest2):
            raise ValueError(f"structures differ: keys {sorted(nest1)} and {sorted(nest2)}")
        pairs = [(nest1[key], nest2[key]) for key in sorted(nest1)]
    else:
        pairs = list(zip(nest1, nest2, strict=True))
    for first, second in pairs:
        assert_same_structure(first, second, check_types)


def convert_to_list(value: Any, n: int, name: str, dtype: type = int) -> list[Any]:
    """Return a list of n numbers; `value` is either a list or one number to repeat.

    >>> convert_to_list(3, 2, "stride")
    [3, 3]
    """
    if isinstance(value, dtype):
        return [value] * n
    if not isinstance(value, (list, tuple, np.ndarray)):
        raise ValueError(f"{name} must be a number or a list, got {value!r}")
    found = list(value)
    if len(found) != n:
        raise ValueError(f"{name} must have {n} numbers, got {value!r}")
    for one in found:
        try:
            dtype(one)
        except (TypeError, ValueError):
            raise ValueError(f"{name} must be a list of {dtype.__name__}, got {value!r}") from None
    return found


def convert_shape_to_list(shape: Any) -> list[Any]:
    """Return a shape's sizes as a list, keeping variables."""
    return [size if isinstance(size, Variable) else int(size) for size in shape]


def hold_mutable_vars(structure: Any) -> bool:
    """Return whether the structure contains a list or dict below its outermost level.

    >>> hold_mutable_vars([1]), hold_mutable_vars([1, [2]])
    (False, True)
    """
    items = structure.values() if isinstance(structure, Mapping) else structure
    return any(is_sequence(item) for item in items)


def copy_mutable_vars(structure: Any) -> Any:
    """Return a copy of the structure, with new lists and dicts but the same variables."""
    return pack_sequence_as(structure, list(flatten(structure)))
