"""Plan the faults of a chaos run and inject them; the same seed gives the same schedule."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_positive
from sparsefleet.launch.node_job import JobObserver

if TYPE_CHECKING:
    from typing_extensions import Self

    from sparsefleet.launch.job_plan import ProcessPlan

__all__ = [
    "ChaosConfig",
    "Fault",
    "FaultKind",
    "FaultyProxies",
    "Injector",
    "WatchedProcess",
    "make_schedule",
]

FaultKind = Literal["kill", "pause", "partition", "delay", "disk-full"]
RoleName = Literal["servers", "workers"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChaosConfig:
    """Which faults are injected into a job, and when."""

    kinds: tuple[FaultKind, ...] = ("kill",)
    """The kinds of faults to choose from."""

    roles: tuple[RoleName, ...] = ("servers", "workers")
    """The processes that may be killed or paused."""

    every_s: float = 5.0
    """Mean time between two faults."""

    duration_s: float = 60.0
    """Faults stop this long after the first possible fault. The job then runs to completion."""

    fault_s: float = 2.0
    """Mean length of a pause, a partition, a delay or a full disk."""

    delay_s: float = 0.1
    """How long each message is held up during a delay."""

    seed: int = 0
    """Seed of the schedule."""

    def __post_init__(self) -> None:
        for name in ("every_s", "duration_s", "fault_s", "delay_s"):
            require_positive(self, name)
        require(bool(self.kinds), self, "kinds", f"one or more of {', '.join(get_args(FaultKind))}")
        for kind in self.kinds:
            require(kind in get_args(FaultKind), self, "kinds", ", ".join(get_args(FaultKind)))
        for role in self.roles:
            require(role in get_args(RoleName), self, "roles", ", ".join(get_args(RoleName)))

    @property
    def needs_proxy(self) -> bool:
        """Return whether workers must reach servers through a proxy."""
        return "partition" in self.kinds or "delay" in self.kinds


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a schedule."""

    at_s: float
    """Seconds after the first possible fault."""
    kind: FaultKind
    target: str
    """The name of a process, such as "server 0"."""
    lasts_s: float = 0.0

    def __str__(self) -> str:
        how_long = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.at_s:7.2f} s  {self.kind} {self.target}{how_long}"


def make_schedule(config: ChaosConfig, num_servers: int, num_workers: int) -> list[Fault]:
    """Return the faults in order; they depend only on the arguments.

    >>> one, *_ = make_schedule(ChaosConfig(roles=("servers",), seed=3), 2, 2)
    >>> one.kind, one.target in ("server 0", "server 1"), one.lasts_s
    ('kill', True, 0.0)
    """
    counts = {"servers": num_servers, "workers": num_workers}
    processes = [f"{role[:-1]} {index}" for role in config.roles for index in range(counts[role])]
    servers = [f"server {index}" for index in range(num_servers)]
    draw = random.Random(config.seed)
    faults: list[Fault] = []
    at_s = 0.0
    while (at_s := at_s + config.every_s * draw.uniform(0.5, 1.5)) <= config.duration_s:
        kind = draw.choice(config.kinds)
        among = processes if kind in ("kill", "pause") else servers
        if not among:
            raise ConfigError(
                f"nothing to {kind}: the job has {num_servers} servers and {num_workers} "
                f"workers, and the chosen targets are {', '.join(config.roles) or 'none'}"
            )
        lasts_s = 0.0 if kind == "kill" else config.fault_s * draw.uniform(0.5, 1.5)
        faults.append(Fault(at_s, kind, draw.choice(among), lasts_s))
    return faults


_CHUNK_BYTES = 1 << 16
_CONNECT_S = 30.0
_RETRY_S = 0.05


class _Line:
    """How the proxy currently handles one server's traffic. Used only by the event loop."""

    def __init__(self, target: str) -> None:
        self.target = parse_endpoint(target)
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.delay_s = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect one client to the server, waiting if the server is not up yet or is restarting.

        Closing the connection instead would look like a server that rejects the client's key.
        """
        # asyncio logs a connection that is cancelled at the end as an error.
        with contextlib.suppress(asyncio.CancelledError), contextlib.closing(writer):
            there = await self._connect()
            if there is None:
                return
            with contextlib.closing(there[1]):
                ways = [self._pass(reader, there[1]), self._pass(there[0], writer)]
                tasks = [asyncio.ensure_future(way) for way in ways]
                # If one direction ends, both do, since none of our peers half-close.
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        deadline = time.monotonic() + _CONNECT_S
        while time.monotonic() < deadline:
            await self.is_open.wait()
            try:
                return await asyncio.open_connection(self.target.host, self.target.port)
            except OSError:
                await asyncio.sleep(_RETRY_S)
        return None

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self.is_open.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()


class FaultyProxies:
    """Runs a proxy in front of each of `targets` while open; `endpoints` has the same order.

    Everything passes unchanged until `partition` or `delay` is called. A partition holds back bytes
    and new connections, like a network that drops packets while the sender retries.
    """

    def __init__(self, targets: Sequence[str]) -> None:
        self.endpoints: list[str] = []
        self._targets = list(targets)
        self._lines: list[_Line] = []
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)

    def partition(self, server: int, is_on: bool) -> None:
        """Hold back all traffic to and from a server, or let it pass again."""
        event = self._lines[server].is_open
        self._loop.call_soon_threadsafe(event.clear if is_on else event.set)

    def delay(self, server: int, delay_s: float) -> None:
        """Delay each message to and from a server by `delay_s` seconds; 0 removes the delay."""
        self._loop.call_soon_threadsafe(setattr, self._lines[server], "delay_s", delay_s)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    async def _listen(self) -> None:
        for target in self._targets:
            line = _Line(target)
            server = await asyncio.start_server(line.serve, "127.0.0.1", 0)
            self._lines.append(line)
            self._servers.append(server)
            self.endpoints.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_SAMPLE_S = 0.25


@dataclass(slots=True)
class WatchedProcess:
    """One process of the job; a restarted process is a new object."""

    name: str
    pid: int
    descriptor: int
    """A pidfd, which identifies this process even after its pid is reused."""
    peak_bytes: int = 0
    exit_code: int | None = None


@dataclass(slots=True)
class _Ongoing:
    ends_at: float
    undo: Callable[[], None]


class Injector(JobObserver):
    """Observes a job and injects faults once `has_begun` returns True.

    Fault times are measured from that moment. A fault whose target is not running at the time is
    skipped and reported as skipped.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        proxies: FaultyProxies | None = None,
        *,
        delay_s: float = 0.1,
        has_begun: Callable[[], bool] = lambda: True,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        if sys.platform != "linux":
            raise OSError("chaos needs Linux, because it uses pidfd, prlimit and /proc")
        self._faults = list(faults)
        self._proxies = proxies
        self._delay_s = delay_s
        self._has_begun = has_begun
        self._note = note
        self._lock = threading.Lock()
        self._living: dict[str, WatchedProcess] = {}
        self._ongoing: list[_Ongoing] = []
        self._begun = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos", daemon=True)
        self.processes: list[WatchedProcess] = []
        """Every process that was started, in order."""
        self.injected: list[Fault] = []
        self.skipped: list[Fault] = []

    # -- as the launcher's observer --------------------------------------------------------------

    def started(self, plan: ProcessPlan, pid: int) -> None:
        """Start watching a process that was started."""
        process = WatchedProcess(plan.name, pid, os.pidfd_open(pid))
        with self._lock:
            self.processes.append(process)
            self._living[plan.name] = process
        self._begun.set()

    def ended(self, plan: ProcessPlan, pid: int, exit_code: int) -> None:
        """Stop watching a process that has exited."""
        with self._lock:
            process = self._living.get(plan.name)
            if process is not None and process.pid == pid:
                process.exit_code = exit_code
                del self._living[plan.name]

    # -- faults ----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._begun.set()
        self._thread.join()
        for process in self.processes:
            os.close(process.descriptor)

    def _run(self) -> None:
        self._begun.wait()
        while not (self._has_begun() or self._ended.wait(_SAMPLE_S)):
            self._sample_memory()
        begin = time.monotonic()
        waiting = list(self._faults)
        while not self._ended.is_set():
            now = time.monotonic()
            while waiting and begin + waiting[0].at_s <= now:
                self._inject(waiting.pop(0), now)
            for over in [one for one in self._ongoing if one.ends_at <= now]:
                self._ongoing.remove(over)
                over.undo()
            self._sample_memory()
            moments = [one.ends_at for one in self._ongoing]
            moments += [begin + waiting[0].at_s] if waiting else []
            self._ended.wait(max(0.0, min([now + _SAMPLE_S, *moments]) - time.monotonic()))
        for one in self._ongoing:
            one.undo()

    def _inject(self, fault: Fault, now: float) -> None:
        with self._lock:
            process = self._living.get(fault.target)
        undo: Callable[[], None] | None = None
        try:
            if process is None:
                raise ProcessLookupError
            undo = self._do(fault, process)
        except ProcessLookupError:
            self.skipped.append(fault)
            return
        self.injected.append(fault)
        self._note(str(fault))
        if undo is not None:
            self._ongoing.append(_Ongoing(now + fault.lasts_s, undo))

    def _do(self, fault: Fault, process: WatchedProcess) -> Callable[[], None] | None:
        """Inject a fault; return a function that undoes it, or None if there is nothing to undo."""
        index = int(fault.target.split()[1])
        if fault.kind == "kill":
            signal.pidfd_send_signal(process.descriptor, signal.SIGKILL)
            return None
        if fault.kind == "pause":
            signal.pidfd_send_signal(process.descriptor, signal.SIGSTOP)
            return lambda: _signal(process, signal.SIGCONT)
        if fault.kind == "disk-full":
            return _fill_disk(process)
        assert self._proxies is not None
        proxies = self._proxies
        if fault.kind == "delay":
            proxies.delay(index, self._delay_s)
            return lambda: proxies.delay(index, 0.0)
        proxies.partition(index, True)
        return lambda: proxies.partition(index, False)

    def _sample_memory(self) -> None:
        with self._lock:
            living = list(self._living.values())
        for process in living:
            process.peak_bytes = max(process.peak_bytes, _peak_bytes(process.pid))


def _signal(process: WatchedProcess, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process.descriptor, number)


def _fill_disk(process: WatchedProcess) -> Callable[[], None]:
    """Make every file write fail, as on a full disk, by lowering the process's file size limit."""
    # The process inherited this one's limit. Its own limit may still be changed by an ongoing
    # fault.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, hard))

    def undo() -> None:
        if process.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (soft, hard))

    return undo


def _peak_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0
