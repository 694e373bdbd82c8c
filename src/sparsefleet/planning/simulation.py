"""A small discrete-event simulation: processes, shared CPU cores, network cards.

A process is a generator that yields waits. A wait is a function that takes a callback to call when
it is over: `yield host.work(0.01)` continues after 10 ms of CPU time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import count

from sparsefleet.field_checks import require_not_negative

__all__ = ["Card", "Crowding", "Gate", "Host", "Pool", "Process", "Simulation", "Wait", "send"]

Wait = Callable[[Callable[[], None]], None]
Process = Generator[Wait, None, None]

_SOON_S = 1e-12  # tasks that end this close together end at the same time
_SOON = 1e-10  # relative to the clock: a remainder lost in rounding would never end


class Simulation:
    """The clock and the queue of events.

    >>> simulation, seen = Simulation(), []
    >>> def wait() -> Process:
    ...     yield simulation.sleep(2.0)
    ...     seen.append(simulation.now_s)
    >>> simulation.start(wait())
    >>> simulation.run(lambda: bool(seen))
    >>> seen
    [2.0]
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def call_after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call a function when the clock has advanced by `delay_s`."""
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._number), call))

    def start(self, process: Process) -> None:
        """Run a process to its first wait; events resume it."""
        try:
            wait = next(process)
        except StopIteration:
            return
        wait(lambda: self.start(process))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Advance from event to event until `is_over` returns True or no events are left."""
        while self._events and not is_over():
            self.now_s, _, call = heapq.heappop(self._events)
            call()

    def sleep(self, seconds: float) -> Wait:
        """Return a wait that lasts this many seconds."""
        return lambda resume: self.call_after(seconds, resume)


@dataclass(frozen=True, kw_only=True, slots=True)
class Crowding:
    """How much longer the same work takes when other work runs on the machine.

    >>> Crowding(neighbours=0.1, displaced=0.2).stretch(tasks=8, cores=2)
    1.25
    """

    neighbours: float = 0.0
    """Added fraction when all cores are busy, since they share memory bandwidth and a cache."""
    displaced: float = 0.0
    """Added fraction for a time slice on a core that has just run a different task, whose data has
    displaced this task's data from the caches.
    """

    def __post_init__(self) -> None:
        require_not_negative(self, "neighbours")
        require_not_negative(self, "displaced")

    def stretch(self, *, tasks: int, cores: float) -> float:
        """Return the factor by which CPU time grows when `tasks` tasks want to run.

        With more tasks than cores, a fraction 1 - cores / tasks of the time slices follow a slice
        of a different task.
        """
        added = 0.0
        if cores > 1:
            added += self.neighbours * max(0.0, min(tasks, cores) - 1.0) / (cores - 1.0)
        if tasks > cores:
            added += self.displaced * (1.0 - cores / tasks)
        return 1.0 + added


class Host:
    """The cores of a machine. If there are more tasks than cores, tasks share the cores equally.

    >>> simulation, ends = Simulation(), []
    >>> host = Host(simulation, cores=1)
    >>> def task(seconds: float) -> Process:
    ...     yield host.work(seconds)
    ...     ends.append(simulation.now_s)
    >>> for seconds in (1.0, 2.0):
    ...     simulation.start(task(seconds))
    >>> simulation.run(lambda: len(ends) == 2)
    >>> ends
    [2.0, 3.0]
    """

    def __init__(
        self, simulation: Simulation, cores: float, crowding: Crowding | None = None
    ) -> None:
        self._simulation = simulation
        self._cores = cores
        self._crowding = crowding or Crowding()
        self._tasks: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._served_s = 0.0  # CPU time of a task that has run since the start
        self._since_s = 0.0
        self._version = 0
        self.busy_s = 0.0
        """CPU time of all tasks, up to the last time that a task started or ended."""
        self.asked_s = 0.0
        """CPU time that all tasks so far take if nothing else runs."""

    def work(self, seconds: float) -> Wait:
        """Return a wait for `seconds` of CPU time."""
        return lambda resume: self._add(seconds, resume)

    def _rate(self) -> float:
        """Return the speed at which each task advances, relative to a task alone on a core."""
        tasks = len(self._tasks)
        if not tasks:
            return 1.0
        stretch = self._crowding.stretch(tasks=tasks, cores=self._cores)
        return min(1.0, self._cores / tasks) / stretch

    def _catch_up(self) -> None:
        passed = self._simulation.now_s - self._since_s
        self._served_s += passed * self._rate()
        self.busy_s += passed * min(self._cores, len(self._tasks))
        self._since_s = self._simulation.now_s

    def _add(self, seconds: float, resume: Callable[[], None]) -> None:
        if seconds <= 0:
            self._simulation.call_after(0.0, resume)
            return
        self._catch_up()
        self.asked_s += seconds
        heapq.heappush(self._tasks, (self._served_s + seconds, next(self._number), resume))
        self._schedule()

    def _schedule(self) -> None:
        self._version += 1
        if self._tasks:
            left = max(0.0, self._tasks[0][0] - self._served_s) / self._rate()
            version = self._version
            self._simulation.call_after(left, lambda: self._finish(version))

    def _finish(self, version: int) -> None:
        if version != self._version:  # tasks have come or gone since, so a newer event is pending
            return
        self._catch_up()
        done = []
        soon_s = self._served_s + _SOON_S + _SOON * self._simulation.now_s
        while self._tasks and self._tasks[0][0] <= soon_s:
            done.append(heapq.heappop(self._tasks)[2])
        self._schedule()
        for resume in done:
            resume()


class Pool:
    """A pool of threads that take tasks in order of arrival and run them on a host."""

    def __init__(self, host: Host, threads: int) -> None:
        self._host = host
        self._free = threads
        self.asked_s = 0.0
        """CPU time of all tasks so far."""
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()

    def work(self, seconds: float) -> Wait:
        """Return a wait for a free thread and then for `seconds` of CPU time on it."""

        def begin(resume: Callable[[], None]) -> None:
            if self._free:
                self._run(seconds, resume)
            else:
                self._waiting.append((seconds, resume))

        return begin

    def _run(self, seconds: float, resume: Callable[[], None]) -> None:
        self._free -= 1
        self.asked_s += seconds

        def done() -> None:
            self._free += 1
            if self._waiting:
                self._run(*self._waiting.popleft())
            resume()

        self._host.work(seconds)(done)


class Gate:
    """A gate; all waits for it end at the same time, when it opens."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        self.is_open = False

    def wait(self) -> Wait:
        """Return a wait until the gate is open."""
        return lambda resume: resume() if self.is_open else self._waiting.append(resume)

    def wait_within(self, simulation: Simulation, seconds: float) -> Wait:
        """Return a wait until the gate is open, or for at most the given time."""

        def begin(resume: Callable[[], None]) -> None:
            is_over = False

            def once() -> None:
                nonlocal is_over
                if not is_over:
                    is_over = True
                    resume()

            self.wait()(once)
            simulation.call_after(seconds, once)

        return begin

    def open(self) -> None:
        """Open the gate: all waits end, and until `close`, later waits end at once."""
        self.is_open = True
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()

    def close(self) -> None:
        """Make later waits block again."""
        self.is_open = False


class Card:
    """The network card of a machine, which sends and receives messages one at a time."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.free_out_s = 0.0
        self.free_in_s = 0.0
        self.sent = 0.0
        """Bytes sent so far."""
        self.received = 0.0


def send(
    simulation: Simulation,
    sender: Card | None,
    receiver: Card | None,
    sizes: tuple[float, float],
    latency_s: float,
) -> Wait:
    """Return a wait until a message has arrived.

    sizes: bytes on the sender's and on the receiver's card, which differ if one message represents
        several messages. A message begins to arrive while it is still being sent. Without cards,
        both ends are on one machine, and copying is part of the CPU time.
    """

    def begin(resume: Callable[[], None]) -> None:
        now_s = simulation.now_s
        if sender is None or receiver is None:
            simulation.call_after(latency_s, resume)
            return
        sender.sent += sizes[0]
        receiver.received += sizes[1]
        leaving_s = max(now_s, sender.free_out_s)
        sender.free_out_s = leaving_s + sizes[0] / sender.bytes_per_s
        arriving_s = max(leaving_s + latency_s, receiver.free_in_s)
        receiver.free_in_s = arriving_s + sizes[1] / receiver.bytes_per_s
        arrived_s = max(receiver.free_in_s, sender.free_out_s + latency_s)
        simulation.call_after(arrived_s - now_s, resume)

    return begin
