"""How a training thread gets its next batch: on the spot, or read ahead with its rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from sparsefleet.nn import PulledRows
from sparsefleet.train.batch import Batch
from sparsefleet.train.batch_source import BatchFeed
from sparsefleet.train.step_clock import StepClock

__all__ = ["BatchSupply", "DirectSupply", "PrefetchingSupply", "SteppingSupply", "Supplied"]

_STOP_LATENCY_S = 0.2  # how long a thread that waits for a batch may not notice the end


class Supplied(NamedTuple):
    """A batch and, where they were fetched ahead, its rows."""

    batch: Batch
    pulled: PulledRows | None


class BatchSupply(Protocol):
    """Gives one thread its batches, and puts the time it waited on the clock."""

    @property
    def has_ahead(self) -> bool:
        """Whether a batch was read, or is being read, that nobody has taken."""

    def take(self, clock: StepClock, *, read_ahead: bool = True) -> Supplied | None:
        """The next batch; None at the end. Without `read_ahead` none is read after it."""

    def read_ahead(self, clock: StepClock) -> PulledRows | None:
        """At the end of a step, before its gradients go: what the next batch wants of them."""

    def close(self) -> None:
        """Reads nothing more."""


class DirectSupply:
    """Reads a batch when it is asked for one."""

    def __init__(self, feed: BatchFeed) -> None:
        self._feed = feed

    @property
    def has_ahead(self) -> bool:
        return False

    def take(self, clock: StepClock, *, read_ahead: bool = True) -> Supplied | None:
        del read_ahead
        begun = perf_counter()
        batch = self._feed.take()
        clock.data_s += perf_counter() - begun
        return None if batch is None else Supplied(batch, None)

    def read_ahead(self, clock: StepClock) -> PulledRows | None:
        del clock
        return None

    def close(self) -> None:
        pass


class SteppingSupply:
    """Reads the next batch at the end of a step, so that its rows come back with the gradients.

    In the thread that trains: what the data and the model draw by chance, they draw in the same
    order as if the batch was read after the step.

    plan: says which rows the inputs of a batch want; may give None.
    """

    def __init__(self, feed: BatchFeed, plan: Callable[[Any], PulledRows | None]) -> None:
        self._feed = feed
        self._plan = plan
        self._may_read_ahead = True
        self._ahead: Supplied | None = None
        self._error: Exception | None = None

    @property
    def has_ahead(self) -> bool:
        return self._ahead is not None

    def take(self, clock: StepClock, *, read_ahead: bool = True) -> Supplied | None:
        self._may_read_ahead = read_ahead
        error, self._error = self._error, None
        if error is not None:
            raise error
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            batch = self._read(clock)
            return None if batch is None else Supplied(batch, None)
        return ahead

    def read_ahead(self, clock: StepClock) -> PulledRows | None:
        if not self._may_read_ahead:
            return None
        try:
            self._ahead = self._read_and_plan(clock)
        except Exception as error:  # it is not of the step that is about to end: see take
            self._error = error
        return None if self._ahead is None else self._ahead.pulled

    def close(self) -> None:
        self._may_read_ahead = False

    def _read_and_plan(self, clock: StepClock) -> Supplied | None:
        batch = self._read(clock)
        if batch is None:
            return None
        begun = perf_counter()
        wanted = self._plan(batch.inputs)
        clock.pull_s += perf_counter() - begun
        return Supplied(batch, wanted)

    def _read(self, clock: StepClock) -> Batch | None:
        begun = perf_counter()
        batch = self._feed.take()
        clock.data_s += perf_counter() - begun
        return batch


class _Ahead(NamedTuple):
    """What the reading thread hands over: a batch, the end, or what it raised."""

    supplied: Supplied | None
    pull_s: float
    error: BaseException | None


class PrefetchingSupply:
    """Has a thread of its own read one batch ahead, and fetch its rows.

    prefetch: fetches the rows for the inputs of a batch; may give None.
    """

    def __init__(
        self,
        feed: BatchFeed,
        prefetch: Callable[[Any], PulledRows | None],
        stopped: threading.Event,
    ) -> None:
        self._feed = feed
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

    def take(self, clock: StepClock, *, read_ahead: bool = True) -> Supplied | None:
        if self._ended:
            return None
        begun = perf_counter()
        if not self._is_asked:
            self._ask()
        ahead = self._wait()
        if ahead is None or ahead.error is not None or ahead.supplied is None:
            self._ended = True
            clock.data_s += perf_counter() - begun
            if ahead is not None and ahead.error is not None:
                raise ahead.error
            return None
        self._is_asked = False
        if read_ahead:
            self._ask()
        waited_s = perf_counter() - begun
        # Reading comes before fetching, so what is waited for last is the fetching.
        pull_s = min(waited_s, ahead.pull_s)
        clock.pull_s += pull_s
        clock.data_s += waited_s - pull_s
        return ahead.supplied

    def read_ahead(self, clock: StepClock) -> PulledRows | None:
        del clock
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
            except BaseException as error:  # the thread's edge: raised in the thread that trains
                ahead = _Ahead(None, 0.0, error)
            self._ready.put(ahead)
            if ahead.supplied is None:
                return

    def _read_one(self) -> _Ahead:
        batch = self._feed.take()
        if batch is None:
            return _Ahead(None, 0.0, None)
        begun = perf_counter()
        pulled = self._prefetch(batch.inputs)
        return _Ahead(Supplied(batch, pulled), perf_counter() - begun, None)
