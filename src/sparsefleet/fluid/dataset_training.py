"""Programs run over the batches of a Dataset, by threads."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.distributed import ProgramRole
from sparsefleet.fluid.feeding import feed_of
from sparsefleet.fluid.fetch_printing import FetchPrinter, print_fetched
from sparsefleet.fluid.framework import Program, Variable
from sparsefleet.fluid.lowering.lowered import RunResult
from sparsefleet.fluid.lowering.recording import OpTimes
from sparsefleet.fluid.scope import Scope

__all__ = ["DatasetRun", "FetchHandler", "Fetching", "check_no_updates"]

_JOIN_S = 60.0  # for a thread that was told to stop; a step takes less

RunOnce = Callable[[Program, Any, Sequence[str], Scope], Any]


class FetchHandler:
    """Gets values of variables from time to time; override `handler`.

    var_dict: key -> variable.
    period_secs: between two calls.
    """

    def __init__(
        self, var_dict: Mapping[str, Variable] | None = None, period_secs: float = 60
    ) -> None:
        if not var_dict:
            raise ConfigError("FetchHandler needs var_dict: key -> variable")
        self.var_dict = dict(var_dict)
        self.period_secs = period_secs

    def handler(self, res_dict: dict[str, Any]) -> None:
        """Called with key -> array; prints them unless overridden."""
        for key, value in res_dict.items():
            print(f"{key}: {value}", flush=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetching:
    """What is printed on the way."""

    names: Sequence[str] = ()
    infos: Sequence[str] = ()
    print_period: int = 100
    """Batches between two prints, which the first thread makes."""
    printer: FetchPrinter = field(default_factory=FetchPrinter)
    """Counts them, from one pass to the next."""
    debug: bool = False
    """Print the speed, and how long operators take in the first thread, to stderr as often."""
    handler: FetchHandler | None = None

    def __post_init__(self) -> None:
        if len(self.names) != len(self.infos):
            raise AssertionError(
                f"fetch_list has {len(self.names)} variables, fetch_info {len(self.infos)} texts: "
                "wanted as many"
            )


class DatasetRun:
    """One pass of a program over a Dataset.

    Threads take batches in turn, and share what is kept in the scope without locks, as Fluid's do.
    The first error stops all of them and is raised.
    """

    def __init__(
        self, run_once: RunOnce, program: Program, scope: Scope, fetching: Fetching, threads: int
    ) -> None:
        self._run_once = run_once
        self._program = program
        self._scope = scope
        self._fetching = fetching
        self._threads = threads
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._clock = _Clock()
        self._op_times = OpTimes()  # of the first thread
        self._latest: dict[str, Any] = {}
        self._role: ProgramRole | None = None  # of whom threads leave when they have no more data

    def over(self, dataset: Any) -> None:
        """Returns when every batch has been trained."""
        role = self._program._distributed
        if role is not None and role.begin_pass(self._program, self._threads):
            self._role = role
            role.get_ready(self._scope)  # there may be no batch that does
        batches = iter(dataset)
        others = [
            threading.Thread(target=self._work, args=(batches, index), name=f"dataset-{index}")
            for index in range(1, self._threads)
        ]
        watcher = _Watcher(self._fetching.handler, self._latest)
        # One of torch's threads for each of ours: they compute side by side.
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with watcher:
                for thread in others:
                    thread.start()
                self._work(batches, 0)
                for thread in others:
                    self._join(thread)
        finally:
            torch.set_num_threads(before)
        if self._error is not None:
            raise self._error

    def _join(self, thread: threading.Thread) -> None:
        while thread.is_alive():
            thread.join(_JOIN_S)
            if thread.is_alive() and self._error is not None:
                raise TimeoutError(
                    f"thread {thread.name} did not stop within {_JOIN_S:.0f} s after an error"
                ) from self._error

    def _work(self, batches: Iterator[Any], index: int) -> None:
        fetches = list(self._fetching.names) if index == 0 else []
        handler = self._fetching.handler
        if handler is not None and index == 0:
            fetches += [variable.name for variable in handler.var_dict.values()]
        timed = self._op_times if self._fetching.debug and index == 0 else nullcontext()
        try:
            while (batch := self._next(batches)) is not None:
                fed = feed_of(self._program, batch)
                with timed:
                    result = self._run_once(self._program, fed, fetches, self._scope)
                self._clock.count(fed[0])
                if index == 0:
                    self._latest.update(zip(fetches, result.fetched, strict=True))
                period = self._fetching.print_period
                if self._fetching.printer.is_due(period, prints=index == 0):
                    self._print(result)
            if self._role is not None:
                self._role.leave()
        except BaseException as error:  # handed to the thread that waits
            with self._lock:
                self._error = self._error or error
            if self._role is not None:
                self._role.fail(error)

    def _next(self, batches: Iterator[Any]) -> Any:
        begin = time.perf_counter()
        with self._lock:
            if self._error is not None:
                return None
            batch = next(batches, None)
        self._clock.waited(time.perf_counter() - begin)
        return batch

    def _print(self, result: RunResult) -> None:
        texts = zip(self._fetching.infos, self._fetching.names, strict=True)
        values = zip(result.fetched, result.lods, strict=True)
        for (info, name), (value, lod) in zip(texts, values, strict=False):  # handlers fetch more
            print_fetched(info, name, value, lod)
        if self._fetching.debug:
            summary = f"{self._clock.summary()}\nmean time of {self._op_times.summary()}"
            print(summary, file=sys.stderr, flush=True)


@dataclass(slots=True)
class _Clock:
    """Examples and waits of a pass; threads add up, exactness is not wanted."""

    begin: float = field(default_factory=time.perf_counter)
    examples: int = 0
    batches: int = 0
    wait_s: float = 0.0

    def count(self, values: Mapping[str, torch.Tensor]) -> None:
        self.batches += 1
        self.examples += min((len(value) for value in values.values()), default=0)

    def waited(self, seconds: float) -> None:
        self.wait_s += seconds

    def summary(self) -> str:
        took = max(time.perf_counter() - self.begin, 1e-9)
        return (
            f"{self.batches} batches, {self.examples / took:.1f} examples/s, mean read time "
            f"{self.wait_s / max(self.batches, 1) * 1e3:.3f} ms, "
            f"{100 * self.wait_s / took:.1f} % IO"
        )


class _Watcher:
    """Calls a FetchHandler now and then while a pass is under way."""

    def __init__(self, handler: FetchHandler | None, latest: Mapping[str, Any]) -> None:
        self._handler = handler
        self._latest = latest
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fetch-handler", daemon=True)

    def __enter__(self) -> None:
        if self._handler is not None:
            self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._handler is not None:
            self._thread.join(_JOIN_S)

    def _watch(self) -> None:
        handler = self._handler
        assert handler is not None
        while not self._stop.wait(handler.period_secs):
            found = {
                key: self._latest[variable.name].detach().cpu().numpy().copy()
                for key, variable in handler.var_dict.items()
                if variable.name in self._latest
            }
            handler.handler(found)


def check_no_updates(program: Program) -> None:
    """ConfigError if the program trains."""
    for op in program.global_block().ops:
        if op.role == "optimize":
            raise ConfigError(
                f"infer_from_dataset was given a program that trains ('{op.type}', {op.site}): "
                "give program.clone(for_test=True), made before minimize"
            )
