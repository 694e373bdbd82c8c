"""Recompute activations in the backward pass instead of keeping them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import checkpoint

from sparsefleet.fluid.framework import Operator
from sparsefleet.fluid.lowering.graph_parts import replace_part
from sparsefleet.fluid.lowering.shapes import operator_def

__all__ = ["checkpoints_of", "recompute", "segments_of"]

Tensor = torch.Tensor


def checkpoints_of(ops: Sequence[Operator]) -> set[str]:
    """Return the variables to keep for backward passes, or an empty set to keep everything."""
    return {name for op in ops if op.type == "backward" for name in op.attrs.get("checkpoints", ())}


def segments_of(ops: Sequence[Operator], is_pulled: Callable[[Operator], bool]) -> list[range]:
    """Return the segments of adjacent operators to recompute; each ends at a checkpoint.

    Results after the last checkpoint are needed first, so they are kept. An operator that has side
    effects, has a body or reads table rows (is_pulled) runs only once, so its results are also
    kept, and it ends a segment.
    """
    checkpoints = checkpoints_of(ops)
    ends = [
        index
        for index, op in enumerate(ops)
        if op.role == "forward" and checkpoints.intersection(op.output_arg_names)
    ]
    found: list[range] = []
    begin = 0
    for index, op in enumerate(ops[: max(ends, default=-1) + 1]):
        is_once = _is_run_once(op) or is_pulled(op)
        if is_once or index in ends:
            found.append(range(begin, index if is_once else index + 1))
            begin = index + 1
    return [segment for segment in found if len(segment) > 1]


def _is_run_once(op: Operator) -> bool:
    return op.role != "forward" or op.has_sub_block or operator_def(op).has_effect


def recompute(graph: fx.Graph, nodes: Sequence[fx.Node]) -> None:
    """Make these nodes of a finished graph run again in the backward pass."""
    found = (getattr(node.target, "generator", None) for node in nodes)
    generators = [generator for generator in found if generator is not None]

    def wrap(module: fx.GraphModule) -> Callable[..., Any]:
        def segment(*inputs: Any) -> Any:
            if not torch.is_grad_enabled():
                return module.forward(*inputs)
            return checkpoint(
                module.forward,
                *inputs,
                use_reentrant=False,
                context_fn=lambda: _same_draws(generators),
            )

        return segment

    replace_part(graph, nodes, wrap)


def _same_draws(
    generators: Sequence[torch.Generator],
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return contexts for the first run and the recomputation, so that dropout drops the same
    elements in both.
    """
    states = [generator.get_state() for generator in generators]
    return nullcontext(), _drawing_from(generators, states)


@contextmanager
def _drawing_from(
    generators: Sequence[torch.Generator], states: Sequence[Tensor]
) -> Iterator[None]:
    present = [generator.get_state() for generator in generators]
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
    try:
        yield
    finally:
        for generator, state in zip(generators, present, strict=True):
            generator.set_state(state)
