"""One program on several places: feeds are dealt out, gradients combined, results collected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

import torch

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.execution import BuildStrategy, ExecutionStrategy
from sparsefleet.fluid.collective.rank_program import RankProgram
from sparsefleet.fluid.core import EOFException
from sparsefleet.fluid.feed_splitting import split_fed
from sparsefleet.fluid.feeding import Fed, feed_of
from sparsefleet.fluid.framework import Program
from sparsefleet.fluid.freed_memory import give_back_freed_memory
from sparsefleet.fluid.lowering.lowered import Lod, RunResult
from sparsefleet.fluid.program_drawing import draw_program
from sparsefleet.fluid.replicas import Replicas
from sparsefleet.fluid.scope import Scope

__all__ = ["DataParallel", "merged_lod", "merged_values"]

Scale = BuildStrategy.GradientScaleStrategy


class Runner(Protocol):
    """An Executor, as far as it is needed here."""

    def run_fed(
        self, program: Program, fed: Fed, fetches: Sequence[str], scope: Scope
    ) -> RunResult: ...

    def loaded_feed(self, program: Program, feed: Any) -> Any: ...


class DataParallel:
    """A program with `count` replicas.

    locals: scopes of replicas of another program, to be shared.
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
                f"share_vars_from: that program has {len(locals) + 1} places, this one {count}: "
                "give both the same places"
            )
        self.replicas = Replicas(count, scope, execution.num_threads, locals, device=device)
        self._program = program
        self._build = build
        self._iterations = execution.num_iteration_per_run
        self._runs_until_dropped = max(1, execution.num_iteration_per_drop_scope)
        self._runs = 0
        self._programs: dict[tuple[int, int, int], Program] = {}
        self._rank = RankProgram(build) if build.num_trainers > 1 else None
        if build.debug_graphviz_path:
            draw_program(program, build.debug_graphviz_path)

    def run(self, runner: Runner, feed: Any, fetches: Sequence[str]) -> list[RunResult]:
        """One run; a result for each replica, or that of the first alone in async_mode."""
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
        """What an Executor runs on one place of this process."""
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
        """Each replica runs the whole program; on servers they are the threads of the mode."""
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
                self._program._distributed.fail(error)  # others must not wait for this replica
            raise

    def _feeds(self, runner: Runner, feed: Any) -> list[Fed]:
        count = self.replicas.count
        if isinstance(feed, (list, tuple)):
            return self._listed(feed)
        if feed is not None and not isinstance(feed, Mapping):
            raise TypeError(f"feed must be a dict or a list of dicts, got {type(feed).__name__}")
        if feed:
            values = runner.loaded_feed(self._program, feed)
            persistable = [name for name in values if self._is_kept(name)]
            return split_fed(feed_of(self._program, values), count, persistable)
        return [feed_of(self._program, loaded) for loaded in self._loaded(runner)]

    def _listed(self, feed: Sequence[Any]) -> list[Fed]:
        count = self.replicas.count
        trains = any(op.type == "backward" for op in self._program.global_block().ops)
        if not feed or len(feed) > count or (trains and len(feed) < count):
            raise ValueError(
                f"feed is a list of {len(feed)} dicts for {count} places: wanted one for each place"
                + ("; a loader leaves out a short last group with drop_last=True" if trains else "")
            )
        return [feed_of(self._program, one) for one in feed]

    def _loaded(self, runner: Runner) -> Iterator[Any]:
        """A batch for each replica; at the end of the data fewer, unless loaders drop them."""
        for index in range(self.replicas.count):
            try:
                yield runner.loaded_feed(self._program, None)
            except EOFException:
                if index == 0 or any(loader.drop_last for loader in self._program.loaders):
                    raise
                return

    def _is_kept(self, name: str) -> bool:
        variable = self._program.global_block().vars.get(name)
        return variable is not None and variable.persistable

    def _program_for(self, count: int) -> Program:
        """The program with the loss's own gradient as the strategy has it for so many replicas."""
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
    """Results of replicas as one, along the first dimension; None if one has none."""
    if any(value is None for value in values):
        return None
    tensors = [value if isinstance(value, torch.Tensor) else _rows(value) for value in values]
    return torch.cat([tensor.detach().reshape(tensor.shape or (1,)) for tensor in tensors])


def _rows(value: Any) -> torch.Tensor:
    if not hasattr(value, "numpy"):
        raise ConfigError(
            f"cannot put {type(value).__name__} of several replicas together: "
            "fetch it with return_merged=False"
        )
    return torch.from_numpy(value.numpy())


def merged_lod(lods: Sequence[Lod]) -> Lod:
    """The LoD of tensors put one behind the other.

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
