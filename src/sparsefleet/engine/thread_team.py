"""Threads that run one job, stop together, and raise the first error."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["StandingTeam", "ThreadTeam", "TorchThreads", "add_note"]

_log = logging.getLogger("sparsefleet.engine")
Result = TypeVar("Result")
_EXIT_S = 2.0
_SIGNAL_LATENCY_S = 0.5  # maximum delay until the waiting thread notices Ctrl-C


class TorchThreads:
    """Sets the number of torch's threads inside `with TorchThreads(1): ...`, then restores it."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._before = count

    def __enter__(self) -> Self:
        self._before = torch.get_num_threads()
        if self._before != self._count:
            torch.set_num_threads(self._count)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before != self._count:
            torch.set_num_threads(self._before)


class ThreadTeam:
    """Runs one function in `count` threads; a team of one is the calling thread.

    If a thread raises an error, `on_failure` is called once with the error and must make the other
    threads return; `run` then raises that error. Ctrl-C in the calling thread is also a failure. A
    thread that has not returned after `stop_timeout_s` is abandoned; it does not keep the process
    alive.

    >>> team = ThreadTeam(2, torch_threads=1, stop_timeout_s=30.0)
    >>> found = set()
    >>> team.run(found.add, on_failure=print)
    >>> sorted(found)
    [0, 1]
    """

    def __init__(self, count: int, *, torch_threads: int, stop_timeout_s: float) -> None:
        self._count = count
        self._torch_threads = torch_threads
        self._stop_timeout_s = stop_timeout_s

    def run(self, body: Callable[[int], None], on_failure: Callable[[BaseException], None]) -> None:
        """Call body(0), ..., body(count - 1) and return when all have returned."""
        with TorchThreads(self._torch_threads):
            if self._count > 1:
                self._run_threads(body, on_failure)
                return
            try:
                body(0)
            except BaseException as error:
                on_failure(error)
                raise

    def _run_threads(
        self, body: Callable[[int], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        failure = _FirstFailure(on_failure)

        def run(index: int) -> None:
            # The setting is per thread where torch is built with OpenMP.
            torch.set_num_threads(self._torch_threads)
            try:
                body(index)
            except BaseException as error:  # thread boundary: raised again in the calling thread
                failure.note(error)

        threads = [
            threading.Thread(target=run, args=(index,), name=f"sparsefleet-{index}", daemon=True)
            for index in range(self._count)
        ]
        try:
            for thread in threads:
                thread.start()
            while failure.error is None and any(thread.is_alive() for thread in threads):
                for thread in threads:
                    thread.join(_SIGNAL_LATENCY_S / self._count)
        except BaseException as error:
            failure.note(error)
        if failure.error is not None:
            self._wait_for_the_rest(threads, failure.error)
            raise failure.error

    def _wait_for_the_rest(self, threads: list[threading.Thread], error: BaseException) -> None:
        patience_s = self._stop_timeout_s
        if isinstance(error, SystemExit):  # the process exits anyway, and may be killed soon
            patience_s = min(patience_s, _EXIT_S)
        deadline = time.monotonic() + patience_s
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        late = [thread.name for thread in threads if thread.is_alive()]
        if late:
            add_note(
                error,
                f"{', '.join(late)} did not finish within {patience_s:g} s of this error and were "
                "abandoned; they may be blocked in the data or in the model",
            )


class StandingTeam:
    """Threads that persist between jobs, for frequent short jobs.

    >>> team = StandingTeam(2, torch_threads=1)
    >>> team.run([lambda: 1, lambda: 2])
    [1, 2]
    """

    def __init__(self, count: int, *, torch_threads: int) -> None:
        self._pool = ThreadPoolExecutor(
            count, "replica", initializer=torch.set_num_threads, initargs=(torch_threads,)
        )

    def run(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """Make all calls in parallel, at most one per thread; return their results.

        Returns when all calls have finished. If several fail, raises the first call's error.
        """
        futures = [self._pool.submit(call) for call in calls]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]


class _FirstFailure:
    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self.error: BaseException | None = None
        self._on_failure = on_failure
        self._lock = threading.Lock()

    def note(self, error: BaseException) -> None:
        with self._lock:
            if self.error is not None:
                return
            self.error = error
        self._on_failure(error)


def add_note(error: BaseException, text: str) -> None:
    """Add a line below the traceback; before Python 3.11, where errors have no notes, log it."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        _log.error("%s: %s", type(error).__name__, text)
