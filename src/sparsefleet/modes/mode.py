"""What a mode is: the rule by which gradients reach the store and new values come back.

Letters: N keys, D row width, S elements of a dense table.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ClassVar, Literal

from sparsefleet.errors import ConfigError, WorkerError
from sparsefleet.modes.mode_setting import ModeSetting, StepGradients
from sparsefleet.modes.mode_stats import ModeStats, StatsRecorder
from sparsefleet.modes.rates import begin_rates
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.store import Unknown

if TYPE_CHECKING:
    from torch import Tensor


class Mode(ABC):
    """Who waits for whom. One object a worker process, shared by its training threads.

    A thread's step is ``pull`` → forward and backward → ``hand_over``. A thread without more data
    calls ``leave``; before the next pass over the data ``rejoin`` is called once. Made by
    :func:`~sparsefleet.modes.make_mode`. Thread-safe, but for ``start``, ``rejoin``,
    ``set_threads``, ``flush``, ``pause``, ``resume`` and ``finish``: those are called while no
    thread is in a step.
    """

    name: ClassVar[str]
    """What users call it."""

    may_prefetch: ClassVar[bool] = False
    """Whether rows may be pulled before the gradients of the step before are handed over."""

    brings_rows: ClassVar[bool] = False
    """Whether the rows that the next mini-batch wants come back as ``hand_over`` returns."""

    keeps_gradients: ClassVar[bool] = False
    """Whether arrays handed over are still read after ``hand_over`` has returned."""

    keeps_dense: ClassVar[bool] = False
    """Whether dense gradients stay with their parameters, where the mode takes them."""

    steps_together: ClassVar[Literal["nobody", "threads", "workers"]] = "nobody"
    """Who takes each step together: none may stop while others wait for it in one."""

    def __init__(self, setting: ModeSetting) -> None:
        self._setting = setting
        self._store = setting.store
        self._record = StatsRecorder()
        self.takes_parts = False
        """Whether dense gradients are wanted in parts, as the backward pass left them."""
        self._failure: BaseException | None = None
        self._finished = False

    # -- what training calls ------------------------------------------------------------------

    def start(self) -> None:
        """Fetches the dense values, so that all workers begin alike. Tables must be defined."""
        if self._setting.worker_index == 0:
            begin_rates(self._setting)
        self._fetch_dense()

    def pull(
        self, keys: Mapping[str, Keys], *, train: bool = True, unknown: Unknown = "zeros"
    ) -> dict[str, Floats]:
        """The rows of each table's keys (uint64[N]): float32[N, D], in one request a server.

        ``train=False`` reads from the store and creates nothing; ``unknown`` says what keys
        without a row read as.
        """
        began = time.perf_counter()
        rows = self._pull_rows(keys, train, unknown)
        self._record.pulled(time.perf_counter() - began)
        return rows

    def forward(self) -> AbstractContextManager[None] | None:
        """What a forward pass in training is to run in; None if in nothing special."""
        return None

    def backward(self, loss: Tensor) -> None:
        """The backward pass of a step, outside of `forward`."""
        loss.backward()  # type: ignore[no-untyped-call]

    @abstractmethod
    def hand_over(self, gradients: StepGradients) -> None:
        """Ends the calling thread's step; returns when the thread may begin its next one.

        The arrays are the mode's from here on: it may overwrite them and, where
        ``keeps_gradients``, read them later. Raises what went wrong in the background since.
        """

    @abstractmethod
    def leave(self) -> None:
        """The calling thread has no more data in this pass; nobody waits for it any longer."""

    @abstractmethod
    def rejoin(self) -> None:
        """Begins the next pass: all threads are back. Not needed before the first."""

    def set_threads(self, threads: int) -> None:  # noqa: B027  (most modes wait for no thread)
        """So many threads train from now on, in the pass under way or, if all left it, the next.

        Called while no thread is in a step and either none or all have left.
        """

    @abstractmethod
    def flush(self) -> None:
        """Returns when all that was handed over is applied and the dense values are fetched."""

    def pause(self) -> None:
        """`flush`, and no other worker waits for this one until it `resume`s."""
        self.flush()

    def resume(self) -> None:  # noqa: B027  (most modes hold nobody up)
        """Goes on after `pause`, in the same pass; all workers call it."""

    def fail(self, error: BaseException) -> None:
        """A thread of this worker failed: the others stop at their next call, or wake with it."""
        if self._failure is None:
            self._failure = error

    def finish(self) -> None:
        """Flushes, leaves the group of workers and ends own threads. Idempotent.

        After ``fail`` nothing is flushed: others must not take half a step for a whole one.
        """
        if self._finished:
            return
        try:
            if self._failure is None:
                self.flush()
                self._say_goodbye()
        finally:
            self._finished = True
            self._end_threads()

    @property
    @abstractmethod
    def steps_of_schedule(self) -> int:
        """Steps counted for the schedule since ``start``, as far as known here."""

    @property
    def steps_taken(self) -> int:
        """Where all workers take each step together: mini-batches that each was part of."""
        return self.steps_of_schedule

    def stats(self) -> ModeStats:
        """The counters so far."""
        return self._record.snapshot()

    # -- for the modes ------------------------------------------------------------------------

    def _pull_rows(
        self, keys: Mapping[str, Keys], train: bool, unknown: Unknown
    ) -> dict[str, Floats]:
        return self._store.pull_many(keys, train=train, unknown=unknown)[0]

    def _say_goodbye(self) -> None:  # noqa: B027  (most modes are in no group of workers)
        """Leaves what other workers might wait in."""

    def _end_threads(self) -> None:  # noqa: B027  (most modes have no threads of their own)
        """Ends the threads that the mode started."""

    def _fetched(self) -> Mapping[str, Floats]:
        """Dense table to the live array that its values are fetched into."""
        setting = self._setting
        return {} if setting.dense_is_live or setting.dense_step is not None else setting.dense

    def _fetch_dense(self, *, but: Collection[str] = ()) -> None:
        """Overwrites the live dense arrays with the store's values, ``but`` those of these tables.

        A push can bring the values of its tables along: those need no fetching.
        """
        wanted = {table: live for table, live in self._fetched().items() if table not in but}
        if wanted:
            began = time.perf_counter()
            self._store.pull_many({}, wanted)
            self._record.pulled(time.perf_counter() - began)

    def _raise_failure(self) -> None:
        if self._finished:
            raise ConfigError(f"mode '{self.name}' is finished: make a new one to train on")
        if self._failure is not None:
            raise WorkerError({self._setting.worker_index: self._failure}) from self._failure
