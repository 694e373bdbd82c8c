"""Several threads that do one job: they end together, and the first error is the one raised."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ThreadTeam", "TorchThreads", "add_note"]

_log = logging.getLogger("sparsefleet.train")
_SIGNAL_LATENCY_S = 0.5  # how long a Ctrl-C may go unnoticed by the thread that waits


class TorchThreads:
    """`with TorchThreads(1): ...` lets torch use that many threads, then as many as before."""

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

    When a member raises, `on_failure` gets the error, once, and is to make the others return;
    `run` then raises that error. A Ctrl-C in the calling thread counts as a failure. Whoever has
    not come back `stop_timeout_s` later is left behind: its thread does not keep the process.

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
        """Calls body(0), ..., body(count - 1) and returns when all have."""
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
            # The setting is a thread's own where torch is built with OpenMP.
            torch.set_num_threads(self._torch_threads)
            try:
                body(index)
            except BaseException as error:  # the thread's edge: raised again in the caller's
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
        deadline = time.monotonic() + self._stop_timeout_s
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        late = [thread.name for thread in threads if thread.is_alive()]
        if late:
            add_note(
                error,
                f"{', '.join(late)} did not end within {self._stop_timeout_s:g} s of this error "
                "and were left behind; they may wait inside the data or the model",
            )


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
    """Shown below the traceback; before Python 3.11, which has no such notes, in the log."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        _log.error("%s: %s", type(error).__name__, text)
