"""The rows that a lowered program will look up, to the extent known before it runs.

In shapes, N is the number of ids.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from sparsefleet.fluid.lowering.body import detached, first_lod
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.nn.lookup import Lookup, check_ids

__all__ = ["Ids", "LookupPlan", "PlannedLookup", "ids_module", "lookup_of", "makers_of"]

Ids = tuple[torch.Tensor, ...]
"""Ids that a program computes from its feeds alone."""

_PURE = (operator.getitem, detached, first_lod, torch.Tensor.cpu)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedLookup:
    """An embedding lookup whose ids depend only on the feeds."""

    table: str
    dim: int
    padding: int | None
    flat: bool
    """Whether the ids have shape [..., 1]."""
    ids: str | int
    """The name of the feed that holds the ids, or the index of the ids among the computed ids."""


class LookupPlan:
    """The lookups of a program whose ids are known before it runs.

    computed: takes the same feeds and LoDs as the program, and returns the ids that are not fed
        directly.
    trains: whether the program has a backward pass, so that new ids get rows.
    """

    __slots__ = ("_computed", "_lookups", "trains")

    def __init__(
        self, lookups: Sequence[PlannedLookup], computed: fx.GraphModule | None, *, trains: bool
    ) -> None:
        self._lookups = lookups
        self._computed = computed
        self.trains = trains

    def __len__(self) -> int:
        return len(self._lookups)

    def ids(self, feeds: Sequence[torch.Tensor], lods: Sequence[Lod]) -> Ids:
        """Return the computed ids, given the program's feeds and LoDs in the program's order."""
        if self._computed is None:
            return ()
        with torch.no_grad():
            found: Ids = self._computed(*feeds, *lods)
        return found

    def lookups(self, feeds: Mapping[str, torch.Tensor], ids: Ids) -> list[Lookup]:
        """Return the lookups that a run with these feeds and computed ids will make."""
        return [
            lookup_of(
                planned.table,
                planned.dim,
                ids[planned.ids] if isinstance(planned.ids, int) else feeds[planned.ids],
                planned.padding,
                planned.flat,
            )
            for planned in self._lookups
        ]


def lookup_of(table: str, dim: int, ids: torch.Tensor, padding: int | None, flat: bool) -> Lookup:
    """Return the lookup of these ids, whose shape is [...] or, with `flat`, [..., 1]."""
    ids = ids if ids.dtype is torch.int64 else ids.long()
    if flat:
        ids = ids.reshape(-1)  # most ids have one column, so their rows need no reshaping
    check_ids(table, ids)
    return Lookup(table, dim, ids, padding_idx=padding, unknown="initial")


def makers_of(
    ids: fx.Node, inputs: Collection[fx.Node], changed: Collection[fx.Node]
) -> list[fx.Node] | None:
    """Return the nodes that compute ids from these inputs, or None if ids need other inputs.

    changed: nodes whose values an operator may change in place, so when they are read matters.
    """
    found: set[fx.Node] = set()
    waiting = [ids]
    while waiting:
        node = waiting.pop()
        if node in changed:
            return None
        if node in found or node in inputs:
            continue
        if not (node.target in _PURE or getattr(node.target, "is_pure", False)):
            return None
        found.add(node)
        waiting += node.all_input_nodes
    return [node for node in ids.graph.nodes if node in found]


def ids_module(
    inputs: Sequence[fx.Node], makers: Mapping[fx.Node, Sequence[fx.Node]]
) -> fx.GraphModule:
    """Return a module that computes the ids, which are the keys of `makers`, from the inputs."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for nodes in makers.values():
        for node in nodes:
            if node not in copies:
                copies[node] = graph.node_copy(node, lambda known: copies[known])
    graph.output(tuple(copies[ids] for ids in makers))
    return fx.GraphModule(torch.nn.Module(), graph)
