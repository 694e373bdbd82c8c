"""Run a program on several places: split feeds, combine gradients, collect results."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch

from sparsefleet import _core
from sparsefleet.engine.thread_team import StandingTeam
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.collective.collective_programs import RankProgram
from sparsefleet.fluid.executor.program_workload import Fed, feed_of
from sparsefleet.fluid.fleet.settings import BuildStrategy, ExecutionStrategy
from sparsefleet.fluid.framework import Program, ProgramError
from sparsefleet.fluid.framework.core import EOFException
from sparsefleet.fluid.framework.scope import Scope
from sparsefleet.fluid.lowering.lowered import Lod, Lowered, RunResult, making_on
from sparsefleet.fluid.lowering.replica_lowering import (
    ReplicaGraph,
    Stage,
    combined_gradient,
    lower_replica,
)

__all__ = [
    "DataParallel",
    "Replicas",
    "draw_program",
    "give_back_freed_memory",
    "merged_lod",
    "merged_values",
    "split_fed",
]


Scale = BuildStrategy.GradientScaleStrategy


class Runner(Protocol):
    """The part of an Executor's interface that replicas need."""

    def run_fed(
        self, program: Program, fed: Fed, fetches: Sequence[str], scope: Scope
    ) -> RunResult: ...

    def loaded_feed(self, program: Program, feed: Any) -> Any: ...


class DataParallel:
    """A program with `count` replicas.

    locals: another program's replica scopes, to be shared with it.
    """

    def __init__(
        self,
        program: Program,
        count: int,
        build: BuildStrategy,
        execution: ExecutionStrategy,
        *,
        scope: Scope,
        locals: Sequence[Scope] = (),
        device: torch.device | None = None,
    ) -> None:
        if locals and len(locals) != count - 1:
            raise ValueError(
                f"share_vars_from has {len(locals) + 1} places, but this program has {count}; use "
                "the same places for both"
            )
        self.replicas = Replicas(count, scope, execution.num_threads, locals, device=device)
        self._program = program
        self._build = build
        self._iterations = execution.num_iteration_per_run
        self._is_dry = bool(getattr(execution, "_dry_run", False))
        self._runs_until_dropped = max(1, execution.num_iteration_per_drop_scope)
        self._runs = 0
        self._programs: dict[tuple[int, int, int], Program] = {}
        self._rank = RankProgram(build) if build.num_trainers > 1 else None
        if build.debug_graphviz_path:
            draw_program(program, build.debug_graphviz_path)

    def run(self, runner: Runner, feed: Any, fetches: Sequence[str]) -> list[RunResult]:
        """Run once; return one result per replica or, in async_mode, only the first one.

        With ExecutionStrategy's `dry_run`, nothing is run, and nothing can be fetched.
        """
        if self._is_dry and not fetches:
            return []
        results = self._run(runner, feed, fetches)
        self._runs += 1
        if self._runs % self._runs_until_dropped == 0:
            give_back_freed_memory()
        return results

    def _run(self, runner: Runner, feed: Any, fetches: Sequence[str]) -> list[RunResult]:
        if self._build.async_mode or self._program._distributed is not None:
            return self._run_apart(runner, feed, fetches)
        feeds = self._feeds_or_end(runner, feed)
        program = self._program_for(len(feeds))
        if len(feeds) == 1:
            return [runner.run_fed(program, feeds[0], fetches, self.replicas.scope)]
        role = program._distributed
        with nullcontext() if role is None else role.running(self.replicas.scope):
            return self.replicas.run(program, feeds, fetches)

    def program_of_rank(self) -> Program:
        """Return the program for a single replica, which an Executor runs on one place."""
        return self._program_for(1)

    def _feeds_or_end(self, runner: Runner, feed: Any) -> list[Fed]:
        try:
            return self._feeds(runner, feed)
        except EOFException:
            role = self._program_for(self.replicas.count)._distributed
            if role is not None:
                role.end_data(self.replicas.scope)
            raise

    def _run_apart(self, runner: Runner, feed: Any, fetches: Sequence[str]) -> list[RunResult]:
        """Run the whole program in each replica.

        With servers, each replica is a training thread.
        """
        role = self._program._distributed
        rounds = self._iterations if self._program.loaders and not feed else 1
        for _ in range(rounds):
            feeds = self._feeds(runner, feed)
            if role is not None:
                role.begin_pass(self._program, len(feeds))
            wanted = [fetches] * len(feeds)
            if self._build.async_mode:
                wanted[1:] = [()] * (len(feeds) - 1)
            found = self.replicas.run_apart(
                [
                    partial(self._run_alone, runner, fed, names)
                    for fed, names in zip(feeds, wanted, strict=True)
                ]
            )
        return found[:1] if self._build.async_mode else found

    def _run_alone(self, runner: Runner, fed: Fed, fetches: Sequence[str]) -> RunResult:
        try:
            return runner.run_fed(self._program, fed, fetches, self.replicas.scope)
        except BaseException as error:
            if self._program._distributed is not None:
                self._program._distributed.fail(error)  # other replicas must not wait for this one
            raise

    def _feeds(self, runner: Runner, feed: Any) -> list[Fed]:
        count = self.replicas.count
        if isinstance(feed, (list, tuple)):
            return self._listed(feed)
        if feed is not None and not isinstance(feed, Mapping):
            raise TypeError(f"feed must be a dict or a list of dicts, got {type(feed).__name__}")
        if feed:
            persistable = [name for name in feed if self._is_kept(name)]
            fed = feed_of(self._program, feed, count)
            parts = split_fed(fed, count, persistable, may_be_few=not self._trains)
            if not self._program.loaders:
                return parts
            loaded = [feed_of(self._program, one) for one in self._loaded(runner, feed)]
            both = zip(loaded, parts, strict=False)  # fewer batches at the end of the data
            return [(values | own, lods | own_lods) for (values, lods), (own, own_lods) in both]
        return [feed_of(self._program, loaded) for loaded in self._loaded(runner, {})]

    def _listed(self, feed: Sequence[Any]) -> list[Fed]:
        count, trains = self.replicas.count, self._trains
        if not feed or len(feed) > count or (trains and len(feed) < count):
            raise ValueError(
                f"feed is a list of {len(feed)} dicts for {count} places, expected one per place"
                + ("; set the loader's drop_last=True to drop a short last group" if trains else "")
            )
        return [feed_of(self._program, one) for one in feed]

    def _loaded(self, runner: Runner, feed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield each replica's feed, including the batches that loaders provide.

        At the end of the data, there may be fewer batches than replicas, unless loaders drop them.
        """
        for index in range(self.replicas.count):
            try:
                loaded = runner.loaded_feed(self._program, feed) or {}
                yield {name: value for name, value in loaded.items() if name not in feed}
            except EOFException:
                if index == 0 or any(loader.drop_last for loader in self._program.loaders):
                    raise
                return

    @property
    def _trains(self) -> bool:
        return any(op.type == "backward" for op in self._program.global_block().ops)

    def _is_kept(self, name: str) -> bool:
        variable = self._program.global_block().vars.get(name)
        return variable is not None and variable.persistable

    def _program_for(self, count: int) -> Program:
        """Return the program with the loss gradient that the strategy sets for `count` replicas."""
        strategy = self._build.gradient_scale_strategy
        keeps_scale = strategy is Scale.One or (strategy is Scale.CoeffNumDevice and count == 1)
        if keeps_scale and self._rank is None:
            return self._program
        key = (self._program.version, self._program.random_seed, count)
        found = self._programs.get(key)
        if found is None:
            if any(other[:2] != key[:2] for other in self._programs):
                self._programs.clear()
            found = self._programs[key] = self._program.clone()
            if not keeps_scale:
                self._set_scale(found, count)
            if self._rank is not None:
                self._rank.adapt(found, count)
        return found

    def _set_scale(self, program: Program, count: int) -> None:
        for op in program.global_block().ops:
            if op.type == "backward" and not op.input("TargetGradient"):
                if self._build.gradient_scale_strategy is Scale.Customized:
                    op.inputs["TargetGradient"] = [f"{op.input('Loss')[0]}@GRAD"]
                else:
                    op.attrs["scale"] = 1.0 / count


def merged_values(values: Sequence[Any]) -> Any:
    """Concatenate replicas' results along the first dimension; return None if any is None."""
    if any(value is None for value in values):
        return None
    if all(isinstance(value, list) for value in values):  # for arrays, element by element
        return [
            (merged_values([item[0] for item in items]), merged_lod([item[1] for item in items]))
            for items in zip(*values, strict=True)
        ]
    tensors = [value if isinstance(value, torch.Tensor) else _rows(value) for value in values]
    return torch.cat([tensor.detach().reshape(tensor.shape or (1,)) for tensor in tensors])


def _rows(value: Any) -> torch.Tensor:
    if not hasattr(value, "numpy"):
        raise ConfigError(
            f"cannot merge {type(value).__name__} values from several replicas; fetch them with "
            "return_merged=False"
        )
    return torch.from_numpy(value.numpy())


def merged_lod(lods: Sequence[Lod]) -> Lod:
    """Return the LoD of concatenated tensors.

    >>> merged_lod([(torch.tensor([0, 2]),), (torch.tensor([0, 1, 4]),)])
    (tensor([0, 2, 3, 6]),)
    """
    merged = []
    for levels in zip(*lods, strict=True):
        whole = levels[0]
        for level in levels[1:]:
            whole = torch.cat([whole, level[1:] + whole[-1]])
        merged.append(whole)
    return tuple(merged)


def split_fed(
    fed: Fed, count: int, persistable: Sequence[str] = (), *, may_be_few: bool = False
) -> list[Fed]:
    """Split a feed into `count` consecutive parts whose sample counts differ by at most one.

    persistable: variables for which a single fed row goes to every replica.
    may_be_few: if there are fewer samples than replicas, return one part per sample instead of
        raising an error.

    >>> feeds = split_fed(({"x": torch.arange(5)}, {}), 2)
    >>> [values["x"].tolist() for values, _ in feeds]
    [[0, 1, 2], [3, 4]]
    """
    totals = {name: _samples(tensor, fed[1].get(name, ())) for name, tensor in fed[0].items()}
    split = {name: total for name, total in totals.items() if name not in persistable or total > 1}
    wanted = min([count, *split.values()]) if may_be_few else count
    for name, total in split.items():
        if total < wanted or (name in persistable and total != wanted):
            raise ProgramError(
                f"fed to '{name}': {total} samples for {wanted} replicas, expected "
                + (f"1 or {wanted}" if name in persistable else "at least one each")
                + "; feed more samples, or use fewer places (CPU_NUM)"
            )
    feeds: list[Fed] = [({}, {}) for _ in range(wanted)]
    for name, tensor in fed[0].items():
        lod = fed[1].get(name, ())
        parts = _split(tensor, lod, wanted) if name in split else [(tensor, lod)] * wanted
        for (values, lods), (part, part_lod) in zip(feeds, parts, strict=True):
            values[name] = part
            if part_lod:
                lods[name] = part_lod
    return feeds


def _samples(tensor: torch.Tensor, lod: Lod) -> int:
    return len(lod[0]) - 1 if lod else (len(tensor) if tensor.dim() else 1)


def _split(tensor: torch.Tensor, lod: Lod, count: int) -> list[tuple[torch.Tensor, Lod]]:
    share, more = divmod(_samples(tensor, lod), count)
    cuts = [index * share + min(index, more) for index in range(count + 1)]
    return [_part(tensor, lod, cuts[index], cuts[index + 1]) for index in range(count)]


def _part(tensor: torch.Tensor, lod: Lod, begin: int, end: int) -> tuple[torch.Tensor, Lod]:
    levels = []
    for level in lod:
        offsets = level[begin : end + 1]
        begin, end = int(offsets[0]), int(offsets[-1])
        levels.append(offsets - begin)
    return tensor[begin:end], tuple(levels)


def give_back_freed_memory() -> None:
    """Return freed memory to the operating system and to other GPU users."""
    trim = _trim()
    if trim is not None:
        trim(0)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


@cache
def _trim() -> Any:
    """Return glibc's malloc_trim, or None if the C library is not glibc."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def draw_program(program: Program, path: str) -> None:
    """Draw the program as a .dot file with operators as boxes and variables as ovals."""
    lines = ["digraph program {"]
    for number, op in enumerate(program.global_block().ops):
        lines.append(f"  op{number} [shape=box, label={json.dumps(op.type)}];")
        lines += [f"  {json.dumps(name)} -> op{number};" for name in op.input_arg_names]
        lines += [f"  op{number} -> {json.dumps(name)};" for name in op.output_arg_names]
    lines.append("}")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("\n".join(lines) + "\n")


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
                _core.keep_freed_memory(len(feeds))  # the next step needs the same amount again
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
