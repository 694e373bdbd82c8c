"""Measures the costs of operations on this machine, with real server processes.

Costs are measured with one server and with two, since a client of several servers sorts keys and
copies rows, which is unnecessary with a single server. Each operation is measured with few and many
keys, and with narrow and wide rows. The CPU time of the client and of the servers is then fitted as
seconds per request, per key, per byte, and per byte beyond what the cache of a core holds.
Calibration works on Linux only, because it reads the servers' CPU time from the system.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsefleet import _core
from sparsefleet.errors import ConfigError
from sparsefleet.optim import SGD
from sparsefleet.planning.costs import (
    KEY_BYTES,
    NEAR_BYTES,
    OPERATIONS,
    Linear,
    MachineCosts,
    OperationCost,
    WorkerCosts,
)
from sparsefleet.server.run_server import TransportName
from sparsefleet.store import DenseSpec, RemoteStore, RoundMember, TableSpec

__all__ = ["calibrate", "cpu_name", "local_server"]

_DIMS = (8, 64, 256)
_KEYS = (16, 1000, 10_000)
_DENSE = (16_384, 40_000, 400_000, 1_600_000)  # each size gives one block per server
_ROWS = 100_000
_MEMBERS = 4
_SERVERS = {"single": 1, "operations": 2}
"""Servers for the fields of `MachineCosts`."""
_SECONDS = 0.2
_STRETCHES = 8
_ROUND_STRETCHES = 4
_READY_S = 60.0
_END_S = 10.0
_TRANSPORTS: dict[str, TransportName] = {"tls": "tls", "host": "auto"}
"""The server flag for each transport in `MachineCosts`."""
Say = Callable[[str], None]


def cpu_name() -> str:
    """Return the processor's name as reported by the system."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def calibrate(name: str, *, say: Say = lambda _: None) -> MachineCosts:
    """Measure and return the costs of this machine. Takes about a minute.

    say: called with a line for each measurement.

    Raises ConfigError if this system cannot be measured.
    """
    if sys.platform != "linux":
        raise ConfigError(
            f"calibration needs Linux, but this is {sys.platform}: choose a reference machine with "
            "--machine instead"
        )
    from sparsefleet.planning.worker_calibration import calibrate_worker

    _core.keep_freed_memory()  # as in a worker
    measured: dict[str, dict[str, Mapping[str, OperationCost]]] = {each: {} for each in _SERVERS}
    latency_s = {}
    for (which, count), (transport, flag) in itertools.product(
        _SERVERS.items(), _TRANSPORTS.items()
    ):
        say(
            f"requests to {count} server{'s'[: count - 1]}, "
            f"{'TLS' if transport == 'tls' else 'shared memory'}"
        )
        with contextlib.ExitStack() as stack:
            key = secrets.token_hex(32)
            started = [
                stack.enter_context(local_server(flag, key, index, count)) for index in range(count)
            ]
            endpoints, pids = zip(*started, strict=True)
            meter = _Meter(endpoints, key.encode(), flag, pids)
            measured[which][transport] = meter.operations()
            latency_s[transport] = meter.latency_s
    say("training steps")
    worker: WorkerCosts = calibrate_worker()
    return MachineCosts(
        name=name,
        cpu=cpu_name(),
        cores=os.cpu_count() or 1,
        worker=worker,
        operations=measured["operations"],
        single=measured["single"],
        latency_s=latency_s,
    )


@contextlib.contextmanager
def local_server(
    transport: TransportName, key: str, index: int, count: int
) -> Iterator[tuple[str, int]]:
    """Run one of `count` servers on this machine; yield its endpoint and process ID."""
    command = [sys.executable, "-m", "sparsefleet", "server", "--endpoint", "127.0.0.1:0"]
    command += ["--log-level", "warning", "--transport", transport]
    command += ["--index", str(index), "--num-servers", str(count)]
    process = subprocess.Popen(
        command,
        env={**os.environ, "SPARSEFLEET_JOB_KEY": key},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield _endpoint_of(process), process.pid
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _endpoint_of(process: subprocess.Popen[str]) -> str:
    """Return the server's address, parsed from its first line of output."""
    timer = threading.Timer(_READY_S, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            _, found, rest = line.partition("listening on ")
            if found:
                return rest.split()[0]
    finally:
        timer.cancel()
    raise ConfigError(
        f"a calibration server did not start (exit code {process.wait(_END_S)}): run "
        "`sparsefleet server --endpoint 127.0.0.1:0` to see why"
    )


@dataclass(frozen=True, slots=True)
class _Measured:
    """One operation of one size: CPU seconds of the client and the servers, and elapsed time."""

    requests: float
    """Number of requests: one per server involved."""
    keys: float
    size: float
    client_s: float
    server_s: float
    wall_s: float


class _Meter:
    """Measures the costs of all operations over one transport."""

    def __init__(
        self, endpoints: Sequence[str], key: bytes, transport: TransportName, pids: Sequence[int]
    ) -> None:
        self._endpoints, self._key, self._transport, self._pids = endpoints, key, transport, pids
        self._random = np.random.default_rng(0)
        self.latency_s = 0.0
        """Seconds until a message reaches an idle process."""

    def operations(self) -> dict[str, OperationCost]:
        """Return the cost of every operation."""
        with self._connect("calibration") as store:
            self._define(store)
            measured = {
                "pull": [self._pull(store, n, dim) for n in _KEYS for dim in _DIMS],
                "push": [self._push(store, n, dim) for n in _KEYS for dim in _DIMS],
                "dense": [self._dense(store, size) for size in _DENSE],
                "changes": [self._changes(store, n, dim) for n in _KEYS[1:] for dim in _DIMS],
                "barrier": [self._barrier(store)],
            }
            barrier = measured["barrier"][0]  # involves one server only
            idle_s = barrier.wall_s - barrier.client_s - barrier.server_s
            self.latency_s = max(idle_s, 0.0) / 2
        measured["round"] = [self._round(n, dim) for n in _KEYS for dim in _DIMS]
        return {name: _fitted(measured[name]) for name in OPERATIONS}

    def _connect(self, name: str) -> RemoteStore:
        return RemoteStore(self._endpoints, name=name, transport=self._transport, job_key=self._key)

    def _define(self, store: RemoteStore) -> None:
        for dim in _DIMS:
            store.define(TableSpec(name=f"t{dim}", dim=dim, optimizer=SGD(lr=0.01)))
            for begin in range(0, _ROWS, 20_000):
                store.pull(f"t{dim}", np.arange(begin, begin + 20_000))
        for size in _DENSE:
            store.define(DenseSpec(name=f"d{size}", size=size, optimizer=SGD(lr=0.01)))

    def _keys(self, count: int) -> list[np.ndarray]:
        return [self._random.choice(_ROWS, count, replace=False) for _ in range(4)]

    def _pull(self, store: RemoteStore, count: int, dim: int) -> _Measured:
        keys, out = self._keys(count), np.empty((count, dim), np.float32)
        return self._time(
            lambda number: store.pull(f"t{dim}", keys[number % 4], out=out),
            count,
            count * (KEY_BYTES + 4 * dim),
        )

    def _push(self, store: RemoteStore, count: int, dim: int) -> _Measured:
        keys, gradients = self._keys(count), np.ones((count, dim), np.float32)
        return self._time(
            lambda number: store.push(f"t{dim}", keys[number % 4], gradients, unique=True),
            count,
            count * (KEY_BYTES + 4 * dim),
        )

    def _dense(self, store: RemoteStore, size: int) -> _Measured:
        name, gradient, values = f"d{size}", np.ones(size, np.float32), np.empty(size, np.float32)
        return self._time(
            lambda _: store.push_many({}, {name: gradient}, values={name: values}), 0, 8 * size
        )

    def _barrier(self, store: RemoteStore) -> _Measured:
        return self._time(lambda _: store.barrier("calibration", 1), 0, 0, requests=1)

    def _changes(self, store: RemoteStore, count: int, dim: int) -> _Measured:
        """Measure the cost of fetching the rows that one push changed, without the push itself."""
        name, keys = f"t{dim}", self._keys(count)
        gradients = np.ones((count, dim), np.float32)
        store.watch_changes(name)
        for _ in store.take_changes(name):
            pass

        def exchange(number: int) -> None:
            store.push(name, keys[number % 4], gradients, unique=True, add=True)
            for _ in store.take_changes(name):
                pass

        both = self._time(exchange, count, count * (KEY_BYTES + 4 * dim))
        push = self._push(store, count, dim)
        return _Measured(
            requests=both.requests,
            keys=both.keys,
            size=both.size,
            client_s=max(both.client_s - push.client_s, 1e-9),
            server_s=max(both.server_s - push.server_s, 1e-9),
            wall_s=max(both.wall_s - push.wall_s, 1e-9),
        )

    def _round(self, count: int, dim: int) -> _Measured:
        """Measure synchronous rounds of several workers, each with its own session and thread."""
        keys, gradients = self._keys(count), np.ones((count, dim), np.float32)
        rounds = 8 if count > 1000 else 24
        with contextlib.ExitStack() as stack:
            stores = [
                stack.enter_context(self._connect(f"member-{rank}")) for rank in range(_MEMBERS)
            ]
            for store in stores:
                store.define(TableSpec(name=f"t{dim}", dim=dim, optimizer=SGD(lr=0.01)))
            group = f"calibration-{count}-{dim}"

            def take(rank: int, first: int) -> None:
                member = RoundMember(group=group, rank=rank, size=_MEMBERS)
                for number in range(first, first + rounds):
                    sparse = {f"t{dim}": (keys[rank % 4], gradients)}
                    stores[rank].push_round(member, number, sparse, unique=True)

            self._together(lambda rank: take(rank, 1))
            client_s, server_s, wall_s = self._least(
                lambda number: self._together(lambda rank: take(rank, 1 + (1 + number) * rounds)),
                _ROUND_STRETCHES,
            )
            for rank, store in enumerate(stores):
                store.leave_group(RoundMember(group=group, rank=rank, size=_MEMBERS))
        share = rounds * _MEMBERS
        return _Measured(
            requests=len(self._pids),
            keys=count,
            size=count * (KEY_BYTES + 4 * dim),
            client_s=client_s / share,
            server_s=server_s / share,
            wall_s=wall_s / share,
        )

    def _together(self, work: Callable[[int], None]) -> None:
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(_MEMBERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _time(
        self, call: Callable[[int], object], keys: float, size: float, *, requests: int = 0
    ) -> _Measured:
        """Return the cost of a call: the minimum over several series of calls.

        requests: 0 means one to every server.
        """
        for number in range(3):
            call(number)
        begun = time.perf_counter()
        call(0)
        seconds = max(time.perf_counter() - begun, 1e-6)
        calls = max(2, int(_SECONDS / _STRETCHES / seconds))

        def stretch(_: int) -> None:
            for number in range(calls):
                call(number)

        client_s, server_s, wall_s = (each / calls for each in self._least(stretch, _STRETCHES))
        return _Measured(requests or len(self._pids), keys, size, client_s, server_s, wall_s)

    def _served_s(self) -> float:
        """Return the CPU time that all servers have used so far.

        The clock ID of another process is computed as in clock_getcpuclockid(3).
        """
        return sum(time.clock_gettime((~pid << 3) | 2) for pid in self._pids)

    def _least(self, stretch: Callable[[int], None], times: int) -> tuple[float, float, float]:
        """Return the CPU time of this process, the CPU time of the servers, and the elapsed time.

        Each is the minimum over `times` calls to `stretch`, since other programs can only add to
        it.
        """
        taken = []
        for number in range(times):
            client_s, server_s = time.process_time(), self._served_s()
            begun = time.perf_counter()
            stretch(number)
            wall_s = time.perf_counter() - begun
            taken.append((time.process_time() - client_s, self._served_s() - server_s, wall_s))
        client_s, server_s, wall_s = (min(each) for each in zip(*taken, strict=True))
        return client_s, server_s, wall_s


def _fitted(measured: Sequence[_Measured]) -> OperationCost:
    return OperationCost(
        client=_fit([(each, each.client_s) for each in measured]),
        server=_fit([(each, each.server_s) for each in measured]),
    )


def _fit(points: Sequence[tuple[_Measured, float]]) -> Linear:
    """Fit non-negative costs, in seconds per request, key and byte, that minimize the relative
    error."""
    columns = np.array(
        [
            [each.requests, each.keys, each.size, max(0.0, each.size - NEAR_BYTES)]
            for each, _ in points
        ],
        float,
    )
    seconds = np.array([value for _, value in points], float)
    used = [index for index in range(columns.shape[1]) if columns[:, index].any()]
    while used:
        weighted = columns[:, used] / seconds[:, None]
        solved, *_ = np.linalg.lstsq(weighted, np.ones(len(points)), rcond=None)
        if (solved >= 0).all():
            found = [0.0] * columns.shape[1]
            for index, value in zip(used, solved, strict=True):
                found[index] = float(value)
            return Linear(*found)
        used.pop(int(np.argmin(solved)))
    return Linear()
