"""The interface of a mode: when gradients reach the store and when new values come back.

In shapes, N is the number of keys, D the row width, and S the number of elements of a dense table.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from sparsefleet import _core
from sparsefleet.errors import ConfigError, WorkerError
from sparsefleet.modes.mode_setting import GRADIENTS, BatchOrigin, ModeSetting, StepGradients
from sparsefleet.modes.rates import set_first_rates
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.rows import DataMark
from sparsefleet.store.store import Unknown

if TYPE_CHECKING:
    from torch import Tensor


STALENESS_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
"""Upper bounds of the staleness buckets in which steps are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeStats:
    """Counters of one worker since the mode was created; seconds are summed over its threads.

    >>> ModeStats(pushes=2, merged_gradients=8).merge_factor
    4.0
    """

    steps: int = 0
    """Number of mini-batches handed over."""

    pushes: int = 0
    """Number of requests with gradients (with geo, deltas) that the store has applied."""

    merged_gradients: int = 0
    """Number of mini-batches in those pushes."""

    pull_seconds: float = 0.0
    """Seconds spent pulling rows and dense values."""

    push_seconds: float = 0.0
    """Seconds spent pushing; in sync this includes the wait for other workers."""

    wait_seconds: float = 0.0
    """Seconds that training threads waited for each other or for room in the queue."""

    staleness_last: int = 0
    """Number of this worker's earlier mini-batches that the dense values of the last step did not
    yet include.
    """

    staleness_mean: float = 0.0
    """The mean of ``staleness_last`` over all steps."""

    staleness_counts: tuple[int, ...] = ()
    """Number of steps by staleness: up to each of `STALENESS_BOUNDS`, and above the last."""

    queued: int = 0
    """Number of mini-batches handed over but not yet applied."""

    sent_bytes: int = 0
    """Bytes that this worker sent to other workers; mode "collective" only."""

    collectives: int = 0
    """Number of collective calls that sent these bytes."""

    @property
    def merge_factor(self) -> float:
        """Return the number of mini-batches per push; 0 before the first push."""
        return self.merged_gradients / self.pushes if self.pushes else 0.0

    def with_sender(self, sender: _core.SenderStats) -> ModeStats:
        """Return the sum of these counters and those of a background sender."""
        return replace(
            self,
            pushes=self.pushes + sender.pushes,
            merged_gradients=self.merged_gradients + sender.merged,
            pull_seconds=self.pull_seconds + sender.pull_s,
            push_seconds=self.push_seconds + sender.push_s,
            queued=self.queued + sender.open,
        )


class StatsRecorder:
    """Collects the counts for `ModeStats`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps = 0
        self._pushes = 0
        self._merged = 0
        self._pull_seconds = 0.0
        self._push_seconds = 0.0
        self._wait_seconds = 0.0
        self._staleness_last = 0
        self._staleness_sum = 0
        self._staleness_counts = [0] * (len(STALENESS_BOUNDS) + 1)

    def pulled(self, seconds: float) -> None:
        with self._lock:
            self._pull_seconds += seconds

    def pushed(self, seconds: float, merged: int) -> None:
        with self._lock:
            self._pushes += 1
            self._merged += merged
            self._push_seconds += seconds

    def stepped(self, waited_seconds: float, staleness: int = 0) -> None:
        with self._lock:
            self._steps += 1
            self._wait_seconds += waited_seconds
            self._staleness_last = staleness
            self._staleness_sum += staleness
            self._staleness_counts[bisect_left(STALENESS_BOUNDS, staleness)] += 1

    def snapshot(self) -> ModeStats:
        with self._lock:
            stats = ModeStats(
                steps=self._steps,
                pushes=self._pushes,
                merged_gradients=self._merged,
                pull_seconds=self._pull_seconds,
                push_seconds=self._push_seconds,
                wait_seconds=self._wait_seconds,
                staleness_last=self._staleness_last,
                staleness_counts=tuple(self._staleness_counts),
            )
            mean = self._staleness_sum / self._steps if self._steps else 0.0
        return replace(stats, staleness_mean=mean)


class Mode(ABC):
    """Decides who waits for whom. Each worker process has one mode, shared by its training threads.

    A thread's step is ``pull`` → forward and backward → ``hand_over``. A thread that runs out of
    data calls ``leave``; ``rejoin`` is called once before the next pass over the data. Created by
    :func:`~sparsefleet.modes.make_mode`. Thread-safe, except for ``start``, ``rejoin``,
    ``set_threads``, ``flush``, ``pause``, ``resume`` and ``finish``, which must be called while no
    thread is in a step.
    """

    name: ClassVar[str]
    """The name by which users select the mode."""

    may_prefetch: ClassVar[bool] = False
    """Whether rows may be pulled before the previous step's gradients are handed over."""

    brings_rows: ClassVar[bool] = False
    """Whether ``hand_over`` returns with the rows that the next mini-batch needs."""

    keeps_gradients: ClassVar[bool] = False
    """Whether arrays are still read after ``hand_over`` has returned."""

    keeps_dense: ClassVar[bool] = False
    """Whether dense gradients stay in ``parameter.grad``, where the mode reads them."""

    steps_together: ClassVar[Literal["nobody", "threads", "workers"]] = "nobody"
    """Which threads take each step together, so that none may stop while others are in a step."""

    data_streams: ClassVar[tuple[int, ...]] = (GRADIENTS,)
    """The streams in which servers must have applied a mini-batch for it to be done."""

    def __init__(self, setting: ModeSetting) -> None:
        self._setting = setting
        self._store = setting.store
        self._record = StatsRecorder()
        self.takes_parts = False
        """Whether dense gradients are handed over in parts, as the backward pass left them."""
        self._failure: BaseException | None = None
        self._finished = False
        self._dropped: list[DataMark] = []
        self._dropped_lock = threading.Lock()

    @property
    def needs_fresh_rows(self) -> bool:
        """Return whether rows must not be prefetched now, although the mode allows prefetching."""
        return False

    # -- Called by training -------------------------------------------------------------------

    def start(self) -> None:
        """Fetch the dense values, unless `ModeSetting.dense_is_shared`.

        Tables must be defined.
        """
        if self._setting.worker_index == 0 and self._setting.position is None:
            set_first_rates(self._setting)
        if not self._setting.dense_is_shared:
            self._fetch_dense()

    def pull(
        self, keys: Mapping[str, Keys], *, train: bool = True, unknown: Unknown = "zeros"
    ) -> dict[str, Floats]:
        """Pull the rows float32[N, D] of each table's keys uint64[N], in one request per server.

        With ``train=False``, rows are read from the store and none are created; ``unknown`` selects
        the values returned for keys without a row.
        """
        began = time.perf_counter()
        rows = self._pull_rows(keys, train, unknown)
        self._record.pulled(time.perf_counter() - began)
        return rows

    def forward(self) -> AbstractContextManager[None] | None:
        """Return a context manager for a forward pass in training, or None if none is needed."""
        return None

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of a step, outside of the `forward` context."""
        loss.backward()  # type: ignore[no-untyped-call]

    @abstractmethod
    def hand_over(self, gradients: StepGradients) -> None:
        """End the calling thread's step; return when the thread may start its next step.

        The mode takes over the arrays: it may overwrite them and, if ``keeps_gradients`` is true,
        read them later. Raises errors that have occurred in the background since the last call.
        """

    def drop(self, origin: BatchOrigin) -> None:
        """End a step without gradients; the next push reports its mini-batch to the servers."""
        with self._dropped_lock:
            self._dropped += origin.marks()

    def state(self) -> dict[str, int]:
        """Return the state from which a process that replaces this one can continue the mode.

        Must be called while no thread is in a step and no update is pending.
        """
        return {}

    @abstractmethod
    def leave(self) -> None:
        """Leave the pass because the thread has no more data, so no other thread waits for it."""

    @abstractmethod
    def rejoin(self) -> None:
        """Start the next pass with all threads. Not needed before the first pass."""

    def set_threads(self, threads: int) -> None:  # noqa: B027  (most modes wait for no thread)
        """Set the number of threads for the current pass or, if all have left it, the next pass.

        Must be called while no thread is in a step and either no thread or all threads have left
        the pass.
        """

    @abstractmethod
    def flush(self) -> None:
        """Wait until all pending updates are applied, then fetch the dense values."""

    def pause(self) -> None:
        """Apply all pending updates; other workers do not wait for this one until `resume`."""
        self.flush()

    def resume(self) -> None:  # noqa: B027  (most modes hold nobody up)
        """Continue after `pause`, in the same pass; all workers must call it."""

    def fail(self, error: BaseException) -> None:
        """Report that a thread failed; the worker's other threads then raise ``WorkerError``."""
        if self._failure is None:
            self._failure = error

    def finish(self) -> None:
        """Flush, leave the group of workers and stop the mode's own threads. Idempotent.

        After ``fail``, nothing is flushed, since others must not mistake half a step for a whole
        step.
        """
        if self._finished:
            return
        try:
            if self._failure is None:
                self.flush()
                self._leave_groups()
        finally:
            self._finished = True
            self._end_threads()

    @property
    @abstractmethod
    def steps_of_schedule(self) -> int:
        """Return the number of schedule steps since ``start``, as known to this worker."""

    @property
    def steps_taken(self) -> int:
        """Return the number of mini-batches that each worker took part in, if all step together."""
        return self.steps_of_schedule

    def stats(self) -> ModeStats:
        """Return the counters so far."""
        return self._record.snapshot()

    # -- For subclasses -----------------------------------------------------------------------

    def _pull_rows(
        self, keys: Mapping[str, Keys], train: bool, unknown: Unknown
    ) -> dict[str, Floats]:
        return self._store.pull_many(keys, train=train, unknown=unknown)[0]

    def _leave_groups(self) -> None:  # noqa: B027  (most modes are in no group of workers)
        """Leave the groups in which other workers might be waiting for this worker."""

    def _end_threads(self) -> None:  # noqa: B027  (most modes have no threads of their own)
        """Stop the threads that the mode has started."""

    def _marks(self, origins: Iterable[BatchOrigin | None]) -> list[DataMark]:
        """Return the `DataMark`s for a push of these mini-batches and of any that were dropped."""
        known = [each for each in origins if each is not None]
        marks = [mark for each in known for mark in each.marks()]
        # Servers reject a push if they have applied only part of its data.
        if marks and self._dropped and not any(GRADIENTS in each.partial for each in known):
            with self._dropped_lock:
                marks += self._dropped
                self._dropped = []
        return marks

    def _fetched(self) -> Mapping[str, Floats]:
        """Return the live arrays into which dense values are fetched, by dense table."""
        setting = self._setting
        return {} if setting.dense_is_live or setting.dense_step is not None else setting.dense

    def _fetch_dense(self, *, but: Collection[str] = ()) -> None:
        """Overwrite the live dense arrays with the store's values.

        but: tables to leave out, because the reply to a push has already returned their values.
        """
        wanted = {table: live for table, live in self._fetched().items() if table not in but}
        if wanted:
            began = time.perf_counter()
            self._store.pull_many({}, wanted)
            self._record.pulled(time.perf_counter() - began)

    def _worker_error(self, error: BaseException) -> WorkerError:
        """Return the error that this worker's other threads raise after one thread has failed."""
        wrapped = WorkerError({self._setting.worker_index: error})
        wrapped.__cause__ = error
        return wrapped

    def _raise_failure(self) -> None:
        if self._finished:
            raise ConfigError(
                f"mode '{self.name}' is finished; create a new mode to continue training"
            )
        if self._failure is not None:
            raise self._worker_error(self._failure)
