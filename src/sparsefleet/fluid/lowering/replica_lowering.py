"""Lower a program for one of several replicas, cut where the replicas synchronize.

Each replica runs the forward and backward passes on its part of the batch. Then the gradients are
combined, and schedules and updates run once, on the parameters that all replicas share.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from sparsefleet.fluid.framework import Operator, Parameter, Program
from sparsefleet.fluid.lowering.graph_parts import cut_part
from sparsefleet.fluid.lowering.lower import _Lowering
from sparsefleet.fluid.lowering.lowered import Lowered
from sparsefleet.fluid.lowering.shapes import operator_def
from sparsefleet.nn.step_rows import merge_gradients

__all__ = ["ReplicaGraph", "Stage", "combined_gradient", "lower_replica"]

Kind = Literal["each", "meet", "once"]

_SEED_STEP = 1_000_003  # replicas draw different random numbers, which are the same in every run


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a replica's graph; inputs and outputs are value names."""

    kind: Kind
    """"each" runs in every replica, "meet" combines gradients, "once" runs in the first replica."""
    module: fx.GraphModule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaGraph:
    """The stages of one replica, in order, and the names of its results."""

    whole: Lowered
    """The whole program, which defines the feeds and persistent variables and their order."""
    placeholders: tuple[str, ...]
    """The names of the values that `whole` takes, in order."""
    stages: tuple[Stage, ...]
    results: tuple[Any, ...]
    """Value names: (fetched, LoD of each, written), as the graph returns them."""
    private: frozenset[str]
    """Persistent variables that each replica copies, since its forward pass changes them."""


def lower_replica(
    program: Program,
    feeds: Collection[str],
    fetches: Sequence[str],
    with_lod: Collection[str],
    replica: int,
    device: torch.device | None = None,
) -> ReplicaGraph:
    """Return the program for the given replica; for `device`, see `Lowered`."""
    return _ReplicaLowering(program, fetches, replica, device).cut(feeds, with_lod)


class _ReplicaLowering(_Lowering):
    """Lowers a program for one replica; records whether each node runs once or in every replica."""

    def __init__(
        self,
        program: Program,
        fetches: Sequence[str],
        replica: int,
        device: torch.device | None,
    ) -> None:
        self._replica = replica
        self._kinds: dict[fx.Node, Kind] = {}
        super().__init__(program, program.global_block(), fetches, device=device)

    def cut(self, feeds: Collection[str], with_lod: Collection[str]) -> ReplicaGraph:
        whole = self.whole(feeds, with_lod)
        nodes = list(self.graph.nodes)
        return ReplicaGraph(
            whole=whole,
            placeholders=tuple(node.name for node in nodes if node.op == "placeholder"),
            stages=tuple(self._stages(nodes)),
            results=fx.map_arg(nodes[-1].args[0], lambda node: node.name),
            private=frozenset(self._private()),
        )

    def _add(self, op: Operator, index: int) -> None:
        known = set(self.graph.nodes)
        super()._add(op, index)
        if op.type == "backward":
            self._combine(op)
        kind: Kind = "once" if _is_run_once(op) else "each"
        for node in self.graph.nodes:
            if node not in known:
                self._kinds.setdefault(node, kind)

    def _combine(self, op: Operator) -> None:
        """From this backward operator on, use the combined gradients of all replicas."""
        pairs = zip(op.attrs["sources"], op.output("Gradients"), strict=True)
        names = [
            gradient
            for source, gradient in pairs
            if isinstance(self.vars[source], Parameter) and gradient in self.values
        ]
        if not names:
            return
        meeting = self.call("combine", list, [self.values[name] for name in names])
        self._kinds[meeting] = "meet"
        for index, name in enumerate(names):
            self.values[name] = self._item(meeting, index)
            self._kinds[self.values[name]] = "once"

    def _generator(self, *given: Any) -> torch.Generator | None:
        generator = super()._generator(*given)
        if generator is not None and self._replica:
            generator.manual_seed(generator.initial_seed() + self._replica * _SEED_STEP)
        return generator

    def _private(self) -> set[str]:
        once = {name for op in self.ops if _is_run_once(op) for name in op.output_arg_names}
        changed: set[str] = set()
        for op in self.ops:
            if not _is_run_once(op):
                changed.update(op.output_arg_names)
                changed.update(op.input_arg_names if operator_def(op).has_effect else ())
        return {name for name in changed - once if self._is_plain_state(name)}

    def _is_plain_state(self, name: str) -> bool:
        variable = self.vars.get(name)
        return variable is not None and variable.persistable and not self.tables.holds(name)

    def _stages(self, nodes: Sequence[fx.Node]) -> list[Stage]:
        groups: list[tuple[Kind, list[fx.Node]]] = []
        for node in nodes:
            if node.op in ("placeholder", "output"):
                continue
            kind = self._kinds.get(node, "each")
            if not groups or groups[-1][0] != kind:
                groups.append((kind, []))
            groups[-1][1].append(node)
        return [_stage(kind, group) for kind, group in groups]


def _is_run_once(op: Operator) -> bool:
    """Return whether a node has the same value in all replicas, like schedules and updates."""
    return op.role != "forward" and op.type != "backward"


def _stage(kind: Kind, nodes: list[fx.Node]) -> Stage:
    part = cut_part(nodes)
    inputs, outputs = (tuple(node.name for node in found) for found in (part.inputs, part.outputs))
    return Stage(kind, part.module, inputs, outputs)


def combined_gradient(parts: Sequence[Any]) -> Any:
    """Sum the replicas' gradients for a parameter: tensors, or rows (keys, values)."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    if isinstance(found[0], tuple):
        return merge_gradients(found)
    total = found[0]
    for part in found[1:]:
        total = total + part
    return total
