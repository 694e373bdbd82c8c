"""Run only the part of a program needed for given fetches or for one optimizer's updates."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sparsefleet.fluid.framework import Block, Operator, Program, Variable
from sparsefleet.fluid.lowering.shapes import operator_def

__all__ = ["needed_operators", "pruned_for_run", "split_fetches"]


def split_fetches(fetch_list: Any) -> tuple[list[Any], list[Operator]]:
    """Split a fetch_list into values to fetch (variables or names) and update operators.

    Updates are given as a result of `minimize`, a list of operators, or an operator. Raises
    TypeError for anything else.
    """
    if fetch_list is None:
        return [], []
    items = [fetch_list] if isinstance(fetch_list, (str, Variable)) else fetch_list
    if not isinstance(items, (list, tuple)):
        raise AssertionError(f"fetch_list must be a list of variables or names, got {items!r}")
    variables: list[Any] = []
    updates: list[Operator] = []
    for item in items:
        parts: Sequence[Any] = [item]
        if isinstance(item, tuple):
            if not item or not isinstance(item[0], (list, tuple)):
                raise TypeError(f"a tuple in fetch_list must be a result of minimize, got {item!r}")
            parts = item[0]
        elif isinstance(item, list):
            parts = item
        for part in parts:
            if isinstance(part, Operator):
                if part.role != "optimize":
                    raise TypeError(f"an operator in fetch_list must be an update, got {part.type}")
                updates.append(part)
            elif isinstance(part, (str, Variable)):
                variables.append(part)
            else:
                raise TypeError(
                    f"fetch_list takes variables, names and update operators, got {part!r}"
                )
    return variables, updates


def pruned_for_run(
    program: Program, feeds: Collection[str], fetches: Sequence[str], updates: Collection[Operator]
) -> Program:
    """Return a copy with the operators that the fetches and updates need, starting from the feeds.

    updates: the update operators to keep. If empty, all updates are kept.
    """
    ops = program.global_block().ops
    targets = list(updates) or [op for op in ops if op.role == "optimize"]
    wanted = set(fetches) - set(feeds)
    kept: list[int] = []
    for index in reversed(range(len(ops))):
        op = ops[index]
        is_update = op.role == "optimize" and "ParamOut" in op.outputs
        is_wanted = bool(wanted.intersection(op.output_arg_names))
        is_kept = op in targets or (is_wanted and not is_update)
        if is_kept:
            kept.append(index)
            wanted.update(op.input_arg_names)
            wanted.update(op.attrs["sources"] if op.type == "backward" else ())
            wanted.difference_update(feeds)
    made = program.clone()
    block = made.global_block()
    copies = block.ops
    block.hold_ops(copies[index] for index in reversed(kept))
    named = {name for op in block.ops for name in (*op.input_arg_names, *op.output_arg_names)}
    named.update(feeds, fetches)
    inner = {name for other in made.blocks[1:] for op in other.ops for name in op.input_arg_names}
    for name in [name for name in block.vars if name not in named | inner]:
        del block.vars[name]
    return made


def needed_operators(block: Block, fetches: Sequence[str]) -> list[Operator]:
    """Return the operators that the fetches need or that have side effects.

    Fluid executes all operators, but the others have no visible effect.
    """
    variables = block.visible_vars()
    wanted = set(fetches)
    kept = []
    for op in reversed(block.ops):
        if (
            _has_effect(block, op)
            or wanted.intersection(op.output_arg_names)
            or any(variables[name].persistable for name in op.output_arg_names)
        ):
            kept.append(op)
            wanted.update(op.input_arg_names)
            wanted.update(op.attrs["sources"] if op.type == "backward" else ())
    return kept[::-1]


def _has_effect(block: Block, op: Operator) -> bool:
    if op.has_sub_block:
        body = block.program.blocks[op.attrs["sub_block"]]
        return any(_has_effect(body, inner) for inner in body.ops)
    return operator_def(op).has_effect
