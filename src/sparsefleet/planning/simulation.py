"""A small discrete-event simulation: processes, threads on shared CPU cores, network cards.

A process is a generator that yields waits. A wait is a function that takes a callback to call when
it is over: `yield thread.work(0.01)` continues after 10 ms of CPU time.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import count

from sparsefleet.field_checks import require_not_negative

__all__ = [
    "Card",
    "Crowding",
    "Gate",
    "Host",
    "Pool",
    "Process",
    "Simulation",
    "Thread",
    "Wait",
    "send",
]

Wait = Callable[[Callable[[], None]], None]
Process = Generator[Wait, None, None]

_TICK_S = 4e-3  # of Linux: how long a core is idle before it takes a thread from another core
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

    >>> Crowding(neighbours=0.1, displaced=0.2).stretch(busy=2, cores=2, tasks=4)
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

    def stretch(self, *, busy: int, cores: int, tasks: int) -> float:
        """Return the factor by which CPU time grows on a core that `tasks` tasks share, when `busy`
        of the machine's `cores` are busy.

        A fraction 1 - 1 / tasks of the core's time slices follow a slice of a different task.
        """
        added = self.displaced * (1.0 - 1.0 / tasks)
        if cores > 1:
            added += self.neighbours * (busy - 1) / (cores - 1)
        return 1.0 + added


class _Core:
    """A core, whose tasks advance at the same speed."""

    def __init__(self) -> None:
        self.tasks: list[tuple[float, int, Thread]] = []  # a heap
        self.served_s = 0.0  # CPU time of a task that has run since the start
        self.since_s = 0.0
        self.rate = 1.0  # of each task, relative to a task alone on a machine
        self.is_held = False  # by a thread whose task has ended and that now wakes others
        self.version = 0

    @property
    def load(self) -> int:
        """Return the number of threads that run or wait to run."""
        return len(self.tasks) + self.is_held


class Host:
    """A machine with some cores and the threads that run on them.

    As in Linux, a thread that wakes up gets an idle core; the core of the thread that wakes it is
    not idle yet. If there is none, it shares a core with others, and stays there: a core that
    becomes idle takes a thread from another core only if it is still idle some milliseconds later.

    >>> simulation, ends = Simulation(), []
    >>> host = Host(simulation, cores=1)
    >>> def task(seconds: float) -> Process:
    ...     yield host.thread().work(seconds)
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
        self.simulation = simulation
        self._cores = [_Core() for _ in range(math.ceil(cores))]
        self._speed = cores / len(self._cores)
        self._crowding = crowding or Crowding()
        self._number = count()
        self._random = random.Random(0)
        self._num_busy = 0
        self._since_s = 0.0
        self._busy_s = 0.0
        self.asked_s = 0.0
        """CPU time that all tasks so far take if nothing else runs."""

    @property
    def busy_s(self) -> float:
        """CPU time of all tasks so far."""
        passed_s = self.simulation.now_s - self._since_s
        return self._busy_s + passed_s * self._num_busy * self._speed

    def thread(self) -> Thread:
        """Return a new thread."""
        return Thread(self)

    def place(self, before: _Core | None) -> _Core:
        """Return the core for a thread that wakes up.

        before: the core that it last ran on.
        """
        if before is not None and not before.load:
            return before
        if self._num_busy < len(self._cores):
            return next(core for core in self._cores if not core.load)
        least = min(core.load for core in self._cores)
        return self._random.choice([core for core in self._cores if core.load == least])

    def run(self, core: _Core, seconds: float, thread: Thread) -> None:
        """Run a task of a thread on a core."""
        self._catch_up(core)
        was_idle = not core.load
        heapq.heappush(core.tasks, (core.served_s + seconds, next(self._number), thread))
        if was_idle:
            self._count_busy(1)
        self._schedule(core)

    def _count_busy(self, change: int) -> None:
        """Add to the number of busy cores, which slow each other down."""
        self._busy_s, self._since_s = self.busy_s, self.simulation.now_s
        self._num_busy += change
        if self._crowding.neighbours:
            for core in self._cores:
                if core.tasks:
                    self._catch_up(core)
                    self._schedule(core)

    def _catch_up(self, core: _Core) -> None:
        now_s = self.simulation.now_s
        core.served_s += (now_s - core.since_s) * core.rate
        core.since_s = now_s

    def _schedule(self, core: _Core) -> None:
        """Update the speed of a core's tasks, and wait for the first one to end."""
        core.version += 1
        tasks = len(core.tasks)
        if not tasks:
            return
        stretch = self._crowding.stretch(busy=self._num_busy, cores=len(self._cores), tasks=tasks)
        core.rate = self._speed / tasks / stretch
        left_s = max(0.0, core.tasks[0][0] - core.served_s) / core.rate
        version = core.version
        self.simulation.call_after(left_s, lambda: self._finish(core, version))

    def _finish(self, core: _Core, version: int) -> None:
        if version != core.version:  # tasks have come or gone since, so a newer event is pending
            return
        self._catch_up(core)
        done = []
        soon_s = core.served_s + _SOON_S + _SOON * self.simulation.now_s
        while core.tasks and core.tasks[0][0] <= soon_s:
            done.append(heapq.heappop(core.tasks)[2])
        core.is_held = True
        for thread in done:
            thread.end_task()
        core.is_held = False
        if version == core.version:  # nothing has begun here
            self._schedule(core)
        if core.tasks:
            return
        self._count_busy(-1)
        if self._fullest() is not None:
            version = core.version
            self.simulation.call_after(_TICK_S, lambda: self._take_over(core, version))

    def _fullest(self) -> _Core | None:
        """Return the core with the most tasks if it has more than one."""
        fullest = max(self._cores, key=lambda core: len(core.tasks))
        return fullest if len(fullest.tasks) > 1 else None

    def _take_over(self, core: _Core, version: int) -> None:
        """Move a task to a core that is still idle."""
        fullest = self._fullest()
        if version != core.version or fullest is None:
            return
        self._catch_up(fullest)
        end_s, _, thread = fullest.tasks.pop()
        heapq.heapify(fullest.tasks)
        self._schedule(fullest)
        thread.core = core
        self.run(core, max(0.0, end_s - fullest.served_s), thread)


class Thread:
    """A thread of a host, which runs one task at a time.

    It stays on its core as long as it does not wait for anything else.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.core: _Core | None = None
        """The core that it runs on or has last run on."""
        self._end_s = -1.0
        self._resume: Callable[[], None] = lambda: None

    def work(self, seconds: float) -> Wait:
        """Return a wait for `seconds` of CPU time."""

        def begin(resume: Callable[[], None]) -> None:
            host = self._host
            if seconds <= 0:
                resume()
                return
            if self.core is None or self._end_s != host.simulation.now_s:
                self.core = host.place(self.core)
            self._resume = resume
            host.asked_s += seconds
            host.run(self.core, seconds, self)

        return begin

    def end_task(self) -> None:
        """Continue with what follows the task."""
        self._end_s = self._host.simulation.now_s
        self._resume()


class Pool:
    """A pool of threads that take tasks in order of arrival and run them on a host."""

    def __init__(self, host: Host, threads: int) -> None:
        self._free = [host.thread() for _ in range(threads)]
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
        thread = self._free.pop()  # the last that became free, so that it stays on its core
        self.asked_s += seconds

        def done() -> None:
            self._free.append(thread)
            if self._waiting:
                self._run(*self._waiting.popleft())
            resume()

        thread.work(seconds)(done)


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
        both ends are on one machine, and all that a message takes is CPU time.
    """

    def begin(resume: Callable[[], None]) -> None:
        now_s = simulation.now_s
        if sender is None or receiver is None:
            resume()
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
