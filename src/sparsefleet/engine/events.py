"""Training events, to which displays, loggers and callbacks subscribe."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sparsefleet.engine.clock import ReadingWatch, StepClock, TimeShares, total
from sparsefleet.engine.step import StepPosition
from sparsefleet.engine.workload import Outcome

if TYPE_CHECKING:
    from sparsefleet.data import ReaderStats
    from sparsefleet.modes import ModeStats

__all__ = [
    "Attendance",
    "EpochEnded",
    "Evaluated",
    "EvaluatedWithin",
    "Event",
    "Events",
    "Failed",
    "FitBegan",
    "FitEnded",
    "PassBegan",
    "PassEnded",
    "PassResult",
    "PassView",
    "Periodic",
    "SaveFailed",
    "Saved",
    "StepDone",
    "WorkerLost",
]
AnyEvent = TypeVar("AnyEvent")
_log = logging.getLogger("sparsefleet.engine")
_STOP_S = 60.0  # maximum wait for a call in progress


@dataclass(frozen=True, kw_only=True, slots=True)
class PassView:
    """A running pass as seen from outside its threads, for displays that poll it.

    Polling slows training threads down only while it holds the interpreter lock.
    """

    epoch: int
    """The epoch, counted from 1."""
    epochs: int
    num_batches: int | None
    """Number of batches in a whole pass, if known."""
    clocks: list[StepClock]
    """One clock per thread, live."""
    stats_before: ModeStats
    """The mode's counters at the start of the pass."""
    reading: ReadingWatch
    begun: float = field(default_factory=time.monotonic)

    def total(self) -> StepClock:
        """Return the sums over threads so far."""
        return total(self.clocks)


@dataclass(frozen=True, kw_only=True, slots=True)
class PassResult:
    """The result of one pass over this worker's data."""

    epoch: int
    examples: int
    steps: int
    skipped: int
    seconds: float
    loss: float
    """Mean loss per example, computed for each example before the model learns from it."""
    reading: ReaderStats | None
    """Reading statistics for the pass; None if the data keeps no counts."""
    time_shares: TimeShares
    validation: Mapping[str, float] | None = None
    """Metrics on the validation data after the pass."""


class FitBegan(NamedTuple):
    """Training is about to start or resume."""

    epoch: int
    """The first epoch to train, counted from 1."""
    epochs: int


class PassBegan(NamedTuple):
    """A pass over the data starts; its threads run until `PassEnded` or `Failed`."""

    view: PassView


class StepDone(NamedTuple):
    """A thread has finished a step. Emitted in that thread, and only if there is a subscriber."""

    place: StepPosition
    outcome: Outcome
    was_skipped: bool


class PassEnded(NamedTuple):
    """All threads of this worker have run out of data, and the saves of the pass have started."""

    view: PassView
    result: PassResult


class Evaluated(NamedTuple):
    """All workers together have evaluated the model on validation data."""

    epoch: int
    epochs: int
    figures: Mapping[str, float]
    """The metrics, the same on all workers."""


class EvaluatedWithin(NamedTuple):
    """All workers have evaluated the model within an epoch, with their threads paused.

    Emitted in a training thread, or where `fit` was called if this worker has no more data.
    """

    epoch: int
    epochs: int
    step: int
    """Number of batches that all workers together have trained on."""
    figures: Mapping[str, float]
    """The metrics, the same on all workers."""


class EpochEnded(NamedTuple):
    """An epoch and its validation have finished; the model holds the store's parameters."""

    result: PassResult


class Saved(NamedTuple):
    """A checkpoint is committed. Emitted in the first worker, which writes checkpoints."""

    path: str
    step: int
    """Number of batches that all workers together have trained on."""
    is_full: bool
    """False if the checkpoint contains only the rows changed since the previous checkpoint."""
    seconds: float


class SaveFailed(NamedTuple):
    """A checkpoint could not be written; training continues. Emitted in the first worker."""

    path: str
    error: Exception


class Failed(NamedTuple):
    """Training stops with an error, which is raised after all subscribers have seen this event."""

    error: BaseException


class WorkerLost(NamedTuple):
    """A worker was missing when the others synchronized, and they continue without it.

    The lost worker cannot return, since the servers reject it until the job is restarted.
    """

    rank: int


class FitEnded(NamedTuple):
    """All epochs are finished, or training was stopped early. All updates are applied."""

    epochs: int
    """Number of epochs finished over all runs of this `fit`."""
    was_stopped: bool
    """Whether a subscriber asked to stop training early."""


Event = (
    FitBegan
    | PassBegan
    | StepDone
    | PassEnded
    | Evaluated
    | EvaluatedWithin
    | EpochEnded
    | Saved
    | SaveFailed
    | Failed
    | WorkerLost
    | FitEnded
)


class Events:
    """Delivers events to the subscribers of their type, in order of subscription.

    Subscribe before training starts. `emit` runs listeners in the calling thread; an exception from
    a listener is raised there and stops training. Background threads call `post` instead, and a
    training thread delivers at its next step.

    >>> events, seen = Events(), []
    >>> events.subscribe(WorkerLost, seen.append)
    >>> events.emit(WorkerLost(3))
    >>> seen
    [WorkerLost(rank=3)]
    >>> events.listener(StepDone) is None
    True
    """

    def __init__(self) -> None:
        self._listeners: dict[type[Any], list[Callable[[Any], None]]] = {}
        self.posted: deque[Event] = deque()
        """Events from background threads waiting to be delivered."""

    def subscribe(self, kind: type[AnyEvent], listener: Callable[[AnyEvent], None]) -> None:
        """Call `listener` with each event of this type from now on."""
        self._listeners.setdefault(kind, []).append(listener)

    @contextmanager
    def temporary(self) -> Iterator[None]:
        """Return a context manager that, on exit, removes the subscriptions made inside it."""
        before = {kind: list(listeners) for kind, listeners in self._listeners.items()}
        try:
            yield
        finally:
            self._listeners = before
            self.posted.clear()

    def listener(self, kind: type[AnyEvent]) -> Callable[[AnyEvent], None] | None:
        """Return a function that delivers events of this type, or None if there are no subscribers.

        On the hot path, call this once per pass, and create events only if there are subscribers.
        """
        listeners = self._listeners.get(kind)
        if not listeners:
            return None
        return listeners[0] if len(listeners) == 1 else self.emit

    def emit(self, event: Any) -> None:
        """Deliver an event now, in this thread."""
        for listener in self._listeners.get(type(event), ()):
            listener(event)

    def emit_to_all(self, event: Any) -> None:
        """Deliver an event to every listener; log any exceptions they raise."""
        for listener in self._listeners.get(type(event), ()):
            try:
                listener(event)
            except Exception:
                _log.exception("a listener failed to handle %s", type(event).__name__)

    def post(self, event: Event) -> None:
        """Queue an event for a training thread to deliver. Thread-safe."""
        if type(event) in self._listeners:
            self.posted.append(event)

    def deliver(self) -> None:
        """Deliver the posted events."""
        while self.posted:
            try:
                event = self.posted.popleft()
            except IndexError:  # a different thread took the last event
                return
            self.emit(event)


class Attendance:
    """Checks which workers are present each time they synchronize; reports each lost worker once.

    >>> events, seen = Events(), []
    >>> events.subscribe(WorkerLost, seen.append)
    >>> attendance = Attendance(3, events)
    >>> for present in ([0, 1, 2], [0, 2], [0, 2]):
    ...     attendance.update(present)
    >>> attendance.lose(0)
    >>> seen
    [WorkerLost(rank=1), WorkerLost(rank=0)]
    """

    def __init__(self, worker_num: int, events: Events) -> None:
        self._events = events
        self._present = set(range(worker_num))

    def update(self, present: Iterable[int]) -> None:
        """Report the workers that are missing from this synchronization."""
        for rank in sorted(self._present.difference(present)):
            self.lose(rank)

    def lose(self, rank: int) -> None:
        """Report a lost worker, unless it was already reported."""
        if rank in self._present:
            self._present.remove(rank)
            _log.warning("worker %d is lost; the others continue without it", rank)
            self._events.emit(WorkerLost(rank))


class Periodic:
    """Calls a function every `interval_s` seconds during a pass, in its own thread.

    An exception stops the calls, is reported as that thread's error, and does not affect training.
    """

    def __init__(self, interval_s: float, call: Callable[[], None], *, name: str) -> None:
        self._interval_s = interval_s
        self._call = call
        self._name = name
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def attach(self, events: Events) -> None:
        """Subscribe to the start and end of passes."""
        events.subscribe(PassBegan, lambda _: self.start())
        events.subscribe(PassEnded, lambda _: self.stop())
        events.subscribe(Failed, lambda _: self.stop())

    def start(self) -> None:
        """Start the calls; the first one is made after an interval."""
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the calls, and wait for a call in progress. Idempotent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)
            self._thread = None

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._call()
