"""A program lowered for given feeds and fetches, and the times of its operators."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.autograd import profiler

if TYPE_CHECKING:
    from sparsefleet.fluid.lowering.tables import Ids, LookupPlan
    from sparsefleet.nn.step_rows import StepRows

__all__ = ["Lod", "Lowered", "OpTimes", "RunResult", "making_on", "recorded"]


Lod = tuple[torch.Tensor, ...]
"""The int64 offsets of each level, outermost first, or () if there are no sequences."""


@dataclass(slots=True)
class RunResult:
    """The result of running a program."""

    fetched: Sequence[Any]
    lods: Sequence[Lod]
    written: Mapping[str, Any]
    """New values of persistent variables."""


@dataclass(kw_only=True, slots=True)
class Lowered:
    """An fx.GraphModule and its arguments.

    The arguments are the feeds, their LoDs and the persistent variables; then, for a program with
    a lookup plan, the run's table rows and the computed ids.
    """

    module: fx.GraphModule
    feeds: tuple[str, ...]
    lods: tuple[str, ...]
    """Feeds for which the program uses the LoD."""
    states: tuple[str, ...]
    """Variables in the scope that are read or changed."""
    writes: tuple[str, ...]
    plan: LookupPlan | None = None
    """The rows that a run looks up in tables, or None if there are no lookups."""
    trained: frozenset[str] = field(default_factory=frozenset)
    """Feeds and state variables that need autograd."""
    used: frozenset[str] = field(default_factory=frozenset)
    """State variables that an operator needs, not only a fetch."""
    has_backward: bool = False
    sends: bool = False
    """Whether a run passes gradients to the current step."""
    generators: tuple[torch.Generator, ...] = ()
    """Random generators of operators with a seed, in order."""
    device: torch.device | None = None
    """The device on which the program runs, or None if only the CPU is available."""

    def run(
        self,
        feeds: Mapping[str, Any],
        lods: Mapping[str, Lod],
        state_of: Any,
        rows: StepRows | None = None,
        ids: Ids | None = None,
    ) -> RunResult:
        """Run once. `state_of(name)` returns tensors or tables from the scope.

        rows: the source of the rows to look up. If None, rows are pulled from the scope's tables.
        ids: the result of `ids` for this feed, if it was called.
        """
        arguments = self.arguments(feeds, lods, state_of, rows, ids)
        with torch.set_grad_enabled(self.has_backward), making_on(self.device):
            fetched, found_lods, written = self.module(*arguments)
        return RunResult(fetched, found_lods, dict(zip(self.writes, written, strict=True)))

    def ids(self, feeds: Mapping[str, Any], lods: Mapping[str, Lod]) -> Ids:
        """Return the ids that the lookup plan computes from these feeds."""
        if self.plan is None:
            return ()
        used_lods = [lods.get(name, ()) for name in self.lods]
        return self.plan.ids([feeds[name] for name in self.feeds], used_lods)

    def arguments(
        self,
        feeds: Mapping[str, Any],
        lods: Mapping[str, Lod],
        state_of: Any,
        rows: StepRows | None = None,
        ids: Ids | None = None,
    ) -> list[Any]:
        """Return the module's arguments for a run, in order; see `run`."""
        of_tables: list[Any] = []
        if self.plan is not None:
            of_tables = [rows, *(self.ids(feeds, lods) if ids is None else ids)]
        if self.device is not None:
            feeds = {name: feeds[name].to(self.device) for name in self.feeds}
            lods = {name: tuple(x.to(self.device) for x in lods[name]) for name in self.lods}
        taken = [self._known(name, feeds[name]) for name in self.feeds]
        taken += [lods.get(name, ()) for name in self.lods]
        taken += [self._known(name, state_of(name)) for name in self.states]
        return taken + of_tables

    def _known(self, name: str, value: Any) -> Any:
        if name in self.trained and isinstance(value, torch.Tensor):
            # A view with its own version counter, since other threads change the values while this
            # one runs.
            return value.data.requires_grad_()
        return value


def making_on(device: torch.device | None) -> AbstractContextManager[object]:
    """Return a context in which operators create tensors on the device.

    The context slows down every torch call slightly, so it is only used for a GPU.
    """
    return nullcontext() if device is None or device.type == "cpu" else device


class OpTimes:
    """Measures operator times in the thread that enters this context manager.

    >>> with OpTimes() as times:
    ...     recorded("relu", lambda x: max(x, 0))(-1)
    0
    >>> times.summary().split()[0]
    'relu'
    """

    def __init__(self) -> None:
        self._taken: dict[str, tuple[int, float]] = {}

    def __enter__(self) -> OpTimes:
        _active.times = self
        return self

    def __exit__(self, *error: object) -> None:
        _active.times = None

    def add(self, type: str, seconds: float) -> None:
        count, total = self._taken.get(type, (0, 0.0))
        self._taken[type] = (count + 1, total + seconds)

    def calls(self, type: str) -> int:
        """Return how many times operators of this type ran."""
        return self._taken.get(type, (0, 0.0))[0]

    def summary(self) -> str:
        """Return `type mean ms` for each operator type, slowest in total first."""
        found = sorted(self._taken.items(), key=lambda item: -item[1][1])
        return ", ".join(f"{type} {total / count * 1e3:.3f} ms" for type, (count, total) in found)


class _Active(threading.local):
    times: OpTimes | None = None


_active = _Active()


def recorded(type: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that OpTimes measures it and profiles show it as `fluid.<type>`."""
    label = f"fluid.{type}"

    def run(*args: Any, **kwargs: Any) -> Any:
        times = _active.times
        if times is not None:
            begin = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                times.add(type, time.perf_counter() - begin)
        if not profiler._is_profiler_enabled:
            return call(*args, **kwargs)
        with profiler.record_function(label):
            return call(*args, **kwargs)

    run.__name__ = run.__qualname__ = type
    return run
