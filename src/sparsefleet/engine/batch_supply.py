"""Supplies a training thread with batches: on demand, or read ahead along with their rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from sparsefleet.engine.batch_source import BatchFeed
from sparsefleet.engine.clock import StepClock
from sparsefleet.engine.workload import Batch
from sparsefleet.nn.pulled_rows import PulledRows

__all__ = ["BatchSupply", "DirectSupply", "PrefetchingSupply", "SteppingSupply", "Supplied"]

_STOP_LATENCY_S = 0.2  # maximum delay until a thread waiting for a batch notices the end


class Supplied(NamedTuple):
    """A batch and, if fetched in advance, its rows."""

    batch: Batch
    pulled: PulledRows | None


class BatchSupply(Protocol):
    """Supplies one thread with batches and adds the waiting time to its clock."""

    feed: BatchFeed
    """The batches of all threads."""

    @property
    def has_ahead(self) -> bool:
        """Return whether a batch that has not been taken yet was read or is being read."""

    def take(self, *, read_ahead: bool = True) -> Supplied | None:
        """Return the next batch, or None at the end of the data.

        read_ahead: if False, do not start reading the batch after this one.
        """

    def read_ahead(self) -> PulledRows | None:
        """Read the next batch; called at the end of a step, before its gradients are sent."""

    def close(self) -> None:
        """Stop reading batches ahead."""


class DirectSupply:
    """Reads each batch on demand."""

    def __init__(self, feed: BatchFeed, clock: StepClock) -> None:
        self.feed = feed
        self._clock = clock

    @property
    def has_ahead(self) -> bool:
        return False

    def take(self, *, read_ahead: bool = True) -> Supplied | None:
        del read_ahead
        begun = perf_counter()
        batch = self.feed.take()
        self._clock.data_s += perf_counter() - begun
        return None if batch is None else Supplied(batch, None)

    def read_ahead(self) -> PulledRows | None:
        return None

    def close(self) -> None:
        pass


class SteppingSupply:
    """Reads the next batch at the end of a step; the reply to the gradients contains its rows.

    The training thread reads the batch, so data and model draw random numbers in the same order as
    if the batch were read after the step.

    plan: returns the rows that the inputs of a batch need, or None if they are not known.
    """

    def __init__(
        self, feed: BatchFeed, clock: StepClock, plan: Callable[[Any], PulledRows | None]
    ) -> None:
        self.feed = feed
        self._clock = clock
        self._plan = plan
        self._may_read_ahead = True
        self._ahead: Supplied | None = None
        self._error: Exception | None = None

    @property
    def has_ahead(self) -> bool:
        return self._ahead is not None

    def take(self, *, read_ahead: bool = True) -> Supplied | None:
        self._may_read_ahead = read_ahead
        error, self._error = self._error, None
        if error is not None:
            raise error
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            batch = self._read()
            return None if batch is None else Supplied(batch, None)
        return ahead

    def read_ahead(self) -> PulledRows | None:
        if not self._may_read_ahead:
            return None
        try:
            self._ahead = self._read_and_plan()
        except (
            Exception
        ) as error:  # this is not an error in the current step, so the next take raises it
            self._error = error
        return None if self._ahead is None else self._ahead.pulled

    def close(self) -> None:
        self._may_read_ahead = False

    def _read_and_plan(self) -> Supplied | None:
        batch = self._read()
        if batch is None:
            return None
        begun = perf_counter()
        wanted = self._plan(batch.inputs)
        self._clock.pull_s += perf_counter() - begun
        return Supplied(batch, wanted)

    def _read(self) -> Batch | None:
        begun = perf_counter()
        batch = self.feed.take()
        self._clock.data_s += perf_counter() - begun
        return batch


class _Ahead(NamedTuple):
    """A message from the reading thread: a batch, the end of the data, or an error."""

    supplied: Supplied | None
    pull_s: float
    error: BaseException | None


class PrefetchingSupply:
    """Reads one batch ahead in its own thread, and fetches its rows.

    prefetch: fetches the rows that the inputs of a batch need, or returns None if they are not
        known.
    """

    def __init__(
        self,
        feed: BatchFeed,
        clock: StepClock,
        prefetch: Callable[[Any], PulledRows | None],
        stopped: threading.Event,
    ) -> None:
        self.feed = feed
        self._clock = clock
        self._prefetch = prefetch
        self._stopped = stopped
        self._wanted: SimpleQueue[bool] = SimpleQueue()  # True: one more batch; False: end
        self._ready: SimpleQueue[_Ahead] = SimpleQueue()
        self._ended = False
        self._thread = threading.Thread(
            target=self._read_ahead, name="sparsefleet-prefetch", daemon=True
        )
        self._is_asked = False
        self._ask()
        self._thread.start()

    @property
    def has_ahead(self) -> bool:
        return self._is_asked

    def take(self, *, read_ahead: bool = True) -> Supplied | None:
        if self._ended:
            return None
        begun = perf_counter()
        if not self._is_asked:
            self._ask()
        ahead = self._wait()
        if ahead is None or ahead.error is not None or ahead.supplied is None:
            self._ended = True
            self._clock.data_s += perf_counter() - begun
            if ahead is not None and ahead.error is not None:
                raise ahead.error
            return None
        self._is_asked = False
        if read_ahead:
            self._ask()
        waited_s = perf_counter() - begun
        # Reading comes before fetching, so the last part of the wait is fetching.
        pull_s = min(waited_s, ahead.pull_s)
        self._clock.pull_s += pull_s
        self._clock.data_s += waited_s - pull_s
        return ahead.supplied

    def read_ahead(self) -> PulledRows | None:
        return None

    def close(self) -> None:
        self._ended = True
        self._wanted.put(False)

    def _ask(self) -> None:
        self._is_asked = True
        self._wanted.put(True)

    def _wait(self) -> _Ahead | None:
        while not self._stopped.is_set():
            try:
                return self._ready.get(timeout=_STOP_LATENCY_S)
            except Empty:
                continue
        return None

    def _read_ahead(self) -> None:
        while self._wanted.get():
            try:
                ahead = self._read_one()
            except BaseException as error:  # thread boundary: raised again in the training thread
                ahead = _Ahead(None, 0.0, error)
            self._ready.put(ahead)
            if ahead.supplied is None:
                return

    def _read_one(self) -> _Ahead:
        batch = self.feed.take()
        if batch is None:
            return _Ahead(None, 0.0, None)
        begun = perf_counter()
        pulled = self._prefetch(batch.inputs)
        return _Ahead(Supplied(batch, pulled), perf_counter() - begun, None)
