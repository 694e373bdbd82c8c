"""Replicas of a program: threads that train together, each on its own part of a batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch

from sparsefleet import _core
from sparsefleet.engine.thread_team import StandingTeam
from sparsefleet.fluid.executor.feed import Fed
from sparsefleet.fluid.framework import Program, ProgramError
from sparsefleet.fluid.framework.scope import Scope
from sparsefleet.fluid.lowering.lowered import Lowered, RunResult, making_on
from sparsefleet.fluid.lowering.replica_lowering import (
    ReplicaGraph,
    Stage,
    combined_gradient,
    lower_replica,
)

__all__ = ["Replicas"]

Values = dict[str, Any]


class Replicas:
    """Runs a program on `count` places at once.

    All replicas share one copy of the parameters, in the scope. Values that the forward pass itself
    changes, such as batch_norm's running means or auc's counts, are private to each replica: the
    first replica uses the scope, and each other replica uses a child scope that starts as a copy.

    num_threads: total number of threads for all replicas, at least one each; 0 means the number of
        cores on this machine.
    locals: the child scopes of another program's replicas, to be shared with it.
    device: the device that all replicas run on; see `Lowered`.
    """

    def __init__(
        self,
        count: int,
        scope: Scope,
        num_threads: int = 0,
        locals: Sequence[Scope] = (),
        *,
        device: torch.device | None = None,
    ) -> None:
        self.count = count
        self._device = device
        self.scope = scope
        self.locals = list(locals) or [scope.new_scope() for _ in range(1, count)]
        """The scopes of replicas after the first."""
        torch_threads = max(1, (num_threads or os.cpu_count() or 1) // count)
        # No fewer threads than replicas, because replicas that train on servers wait for each
        # other.
        self._team = StandingTeam(count, torch_threads=torch_threads)
        self._lowered: WeakKeyDictionary[Program, dict[Any, list[ReplicaGraph]]] = (
            WeakKeyDictionary()
        )

    def run(
        self, program: Program, feeds: Sequence[Fed], fetches: Sequence[str]
    ) -> list[RunResult]:
        """Run one step, in which replicas combine their gradients.

        Returns the result of each replica.
        """
        graphs = self._graphs(program, feeds, fetches)
        values = [
            self._begin(program, graphs[index], fed, index) for index, fed in enumerate(feeds)
        ]
        for stages in zip(*(graph.stages for graph in graphs), strict=True):
            self._run_stage(stages, values, graphs[0].whole)
        results = [_result(graph, found) for graph, found in zip(graphs, values, strict=True)]
        self._keep(graphs[0].private, results)
        return results

    def run_apart(self, steps: Sequence[Callable[[], Any]]) -> list[Any]:
        """Call functions in parallel; return when all have finished, or raise the first error."""
        return self._team.run(steps)

    def _graphs(
        self, program: Program, feeds: Sequence[Fed], fetches: Sequence[str]
    ) -> list[ReplicaGraph]:
        names, with_lod = sorted(feeds[0][0]), sorted(feeds[0][1])
        for index, (values, lods) in enumerate(feeds):
            if sorted(values) != names or sorted(lods) != with_lod:
                raise ProgramError(
                    f"replica {index}'s feed has {sorted(values)}, with sequences {sorted(lods)}, "
                    f"but replica 0's has {names}, with sequences {with_lod}; feed all replicas "
                    "the same variables"
                )
        key = (program.version, len(feeds), tuple(names), tuple(with_lod), tuple(fetches))
        known = self._lowered.setdefault(program, {})
        found = known.get(key)
        if found is None:
            if any(other[0] != program.version for other in known):
                known.clear()
            found = known[key] = [
                lower_replica(program, names, fetches, with_lod, index, self._device)
                for index in range(len(feeds))
            ]
            if found[0].whole.has_backward:
                _core.keep_freed_memory()  # the next step needs the same amount again
        return found

    def _begin(self, program: Program, graph: ReplicaGraph, fed: Fed, replica: int) -> Values:
        taken = graph.whole.arguments(*fed, partial(self._state, program, graph, replica))
        return dict(zip(graph.placeholders, taken, strict=True))

    def _state(self, program: Program, graph: ReplicaGraph, replica: int, name: str) -> Any:
        held = self.scope.find_var(name)
        value = None if held is None else held.value()
        if value is None:
            if name in graph.whole.used:
                raise ProgramError.no_value(name, program.site_of_use(name))
            return None
        if replica == 0 or name not in graph.private:
            return value
        own = self.locals[replica - 1].var(name)
        if own.value() is None:
            own.hold(value)
        return own.value()

    def _run_stage(self, stages: Sequence[Stage], values: Sequence[Values], whole: Lowered) -> None:
        first = stages[0]
        if first.kind == "meet":
            parts = zip(*([mine[name] for name in first.inputs] for mine in values), strict=True)
            combined = [combined_gradient(part) for part in parts]
            for mine in values:
                mine[first.outputs[0]] = combined
            return
        if first.kind == "once":
            made = _run(first, values[0], whole)
            for mine in values:
                mine.update(made)
        else:
            turns = zip(stages, values, strict=True)
            made_by = self.run_apart([partial(_run, *turn, whole) for turn in turns])
            for mine, found in zip(values, made_by, strict=True):
                mine.update(found)

    def _keep(self, private: Collection[str], results: Sequence[RunResult]) -> None:
        for name, value in results[0].written.items():
            (self.scope.find_var(name) or self.scope.var(name)).hold(value)
        for local, result in zip(self.locals, results[1:], strict=False):
            for name in private & result.written.keys():
                local.var(name).hold(result.written[name])


def _run(stage: Stage, values: Values, whole: Lowered) -> Values:
    with torch.set_grad_enabled(whole.has_backward), making_on(whole.device):
        made = stage.module(*(values[name] for name in stage.inputs))
    return dict(zip(stage.outputs, made, strict=True))


def _result(graph: ReplicaGraph, values: Values) -> RunResult:
    fetched, lods, written = graph.results
    return RunResult(
        [values[name] for name in fetched],
        [values[name] if isinstance(name, str) else name for name in lods],
        {name: values[node] for name, node in zip(graph.whole.writes, written, strict=True)},
    )
