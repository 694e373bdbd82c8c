"""Cut parts of a graph into separate modules."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

__all__ = ["GraphPart", "cut_part", "nodes_after", "replace_part"]


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
