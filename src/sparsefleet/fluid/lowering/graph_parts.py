"""Cut a graph into modules; recompute their activations in the backward pass."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import checkpoint

from sparsefleet.fluid.framework import Operator
from sparsefleet.fluid.lowering.shapes import operator_def

__all__ = [
    "GraphPart",
    "checkpoints_of",
    "cut_part",
    "nodes_after",
    "recompute",
    "replace_part",
    "segments_of",
]


@dataclass(frozen=True, slots=True)
class GraphPart:
    """A module that computes `outputs` from `inputs`, which are nodes of the original graph."""

    module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


def cut_part(nodes: Sequence[fx.Node]) -> GraphPart:
    """Return a copy of these nodes, in order, as a module with the outputs that other nodes use."""
    inside = set(nodes)
    inputs = dict.fromkeys(
        node for inner in nodes for node in inner.all_input_nodes if node not in inside
    )
    outputs = tuple(node for node in nodes if not inside.issuperset(node.users))
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda known: copies[known])
    graph.output(tuple(copies[node] for node in outputs))
    return GraphPart(fx.GraphModule(torch.nn.Module(), graph), tuple(inputs), outputs)


def replace_part(
    graph: fx.Graph, nodes: Sequence[fx.Node], wrap: Callable[[fx.GraphModule], Callable[..., Any]]
) -> None:
    """Replace adjacent nodes of a finished graph with `wrap(module)`."""
    part = cut_part(nodes)
    with graph.inserting_after(nodes[-1]):
        call = graph.call_function(wrap(part.module), part.inputs)
    with graph.inserting_after(call):
        for place, node in reversed(list(enumerate(part.outputs))):
            node.replace_all_uses_with(graph.call_function(operator.getitem, (call, place)))
    for node in reversed(nodes):
        graph.erase_node(node)


def nodes_after(graph: fx.Graph, last: fx.Node | None) -> list[fx.Node]:
    """Return the nodes after `last`, or all nodes if `last` is None."""
    found: list[fx.Node] = []
    for node in reversed(graph.nodes):
        if node is last:
            break
        found.append(node)
    return found[::-1]


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
