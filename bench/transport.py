"""Pull and push on one machine over each transport, compared with a bare socket echo and Redis.

    make bench            or    python bench/transport.py [--quick] [--repeats 5] [--json FILE]

Every side moves the same rows: the echo moves the same bytes between two native processes; Redis
uses MGET and MSET with prebuilt commands and unparsed replies, which is faster than any real
client.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from measure import (
    console,
    interleave,
    machine,
    native_tool,
    parse_arguments,
    report,
    time_call,
    write_json,
)
from sparsefleet import optim
from sparsefleet.store import Constant, LocalStore, RemoteStore, Store, TableSpec

DIM = 10
SIZES = (100, 2_600, 26_000)
ROW_BYTES = 4 * DIM
HEADER_BYTES = 40 + 13 + 64  # frame header, pull header, one section header with its name
READY_S = 30.0
REDIS_CHUNK = 1_000  # keys per command; the best of 100, 1,000 and all at once
TARGET_FLOOR = 1.5  # plain over bare echo + table
TARGET_REDIS = 5.0  # our rows/s over those of Redis
TARGET_TLS = 0.5  # the time that TLS adds to a plain 2,600-row pull
TRANSPORTS = {"plain": "plain", "tls": "tls", "chosen": None}
"""By name; the last is what server and client choose by default."""
JOB_KEY = os.urandom(32).hex()


@contextlib.contextmanager
def server(transport: str | None) -> Iterator[str]:
    """Start a `sparsefleet server` process; yield its endpoint."""
    command = [sys.executable, "-m", "sparsefleet", "server", "--endpoint", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, *([] if transport is None else ["--transport", transport])],
        env={**os.environ, "SPARSEFLEET_JOB_KEY": JOB_KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if match := re.search(r"listening on (\S+)", line):
                yield match.group(1)
                break
        else:
            raise RuntimeError("the server ended before it was ready")
    finally:
        process.terminate()
        process.wait(READY_S)


@contextlib.contextmanager
def redis(num_rows: int, row: bytes) -> Iterator[Exchange | None]:
    """Start a private Redis server with ``num_rows`` rows; yield None if it is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        console.print("redis-server is not installed: run scripts/install_system_packages.sh")
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [
                program,
                "--port",
                str(port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
            ],
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )
        try:
            connection = connect_when_ready(port, process)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            exchange = Exchange(connection)
            for start in range(0, num_rows, 10_000):
                command, wanted = mset_commands(range(start, min(start + 10_000, num_rows)), row)
                exchange(command, wanted)
            yield exchange
            connection.close()
        finally:
            process.terminate()
            process.wait(READY_S)


def connect_when_ready(port: int, process: subprocess.Popen[bytes]) -> socket.socket:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=READY_S)
        except ConnectionRefusedError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def resp(parts: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def chunks(keys: np.ndarray | range) -> Iterator[list[bytes]]:
    """Return the keys as Redis sees them, in chunks of one pipelined command."""
    names = [int(key).to_bytes(8, "little") for key in keys]
    for start in range(0, len(names), REDIS_CHUNK):
        yield names[start : start + REDIS_CHUNK]


def mget_commands(keys: np.ndarray) -> tuple[bytes, int]:
    """Return pipelined MGETs, and the length of their replies."""
    command, wanted = b"", 0
    for names in chunks(keys):
        command += resp([b"MGET", *names])
        wanted += len(b"*%d\r\n" % len(names))
        wanted += len(names) * (len(b"$%d\r\n" % ROW_BYTES) + ROW_BYTES + 2)
    return command, wanted


def mset_commands(keys: np.ndarray | range, row: bytes) -> tuple[bytes, int]:
    """Return pipelined MSETs, and the length of their replies."""
    command, wanted = b"", 0
    for names in chunks(keys):
        command += resp([b"MSET", *(part for name in names for part in (name, row))])
        wanted += len(b"+OK\r\n")
    return command, wanted


class Exchange:
    """Sends commands and reads their replies into one buffer, and nothing else."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        self.connection = connection
        self.buffer = memoryview(bytearray(4 << 20))

    def __call__(self, command: bytes, wanted: int) -> None:
        self.connection.sendall(command)
        got = 0
        while got < wanted:
            n = self.connection.recv_into(self.buffer[got:wanted])
            if n == 0:
                raise ConnectionError("redis closed the connection")
            got += n
        if self.buffer[0] == ord("-"):
            raise RuntimeError(f"redis answered {bytes(self.buffer[:wanted])!r}")


def fill(store: Store, num_rows: int) -> Store:
    store.define(
        TableSpec(name="t", dim=DIM, optimizer=optim.SGD(lr=0.01), initializer=Constant(0.1))
    )
    for start in range(0, num_rows, 100_000):
        store.pull("t", np.arange(start, min(start + 100_000, num_rows)))
    return store


def sides_for(
    n: int, num_rows: int, stores: dict[str, Store], cache: Exchange | None, echo: Path
) -> dict[str, Callable[[], float]]:
    """Measure seconds per call, by side, for batches of ``n`` rows."""
    rng = np.random.default_rng(n)
    batches = [rng.permutation(num_rows)[:n] for _ in range(8)]
    gradients = rng.normal(size=(n, DIM)).astype(np.float32)
    out = np.empty((n, DIM), np.float32)
    rounds = max(20, 200_000 // n // 4)
    turn = iter(range(10**12))

    def batch() -> np.ndarray:
        return batches[next(turn) % len(batches)]

    def bare(request: int, reply: int) -> float:
        command = [echo, str(request), str(reply), str(rounds)]
        return float(subprocess.run(command, check=True, capture_output=True).stdout) * 1e-6

    sides: dict[str, Callable[[], float]] = {}
    for name, store in stores.items():
        sides[f"pull {name}"] = lambda s=store: time_call(
            lambda: s.pull("t", batch(), out=out), rounds
        )
        sides[f"push {name}"] = lambda s=store: time_call(
            lambda: s.push("t", batch(), gradients, unique=True), rounds
        )
    request, reply = HEADER_BYTES + 8 * n, 40 + ROW_BYTES * n
    sides["pull echo"] = lambda: bare(request, reply)
    sides["push echo"] = lambda: bare(request + ROW_BYTES * n, 40 + 24)
    if cache is not None:
        gets = [mget_commands(keys) for keys in batches]
        sets = [mset_commands(keys, bytes(ROW_BYTES)) for keys in batches]
        sides["pull redis"] = lambda: time_call(lambda: cache(*gets[next(turn) % 8]), rounds)
        sides["push redis"] = lambda: time_call(lambda: cache(*sets[next(turn) % 8]), rounds)
    return sides


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    num_rows = 50_000 if arguments.quick else 1_000_000
    echo = native_tool("echo_bench")
    console.print(f"[bold]Transport[/bold]: {num_rows:,} rows x {DIM}, loopback. {machine()}")
    figures: dict[str, object] = {"rows": num_rows, "dim": DIM}
    with contextlib.ExitStack() as stack:
        key = JOB_KEY.encode()
        stores: dict[str, Store] = {"table": fill(stack.enter_context(LocalStore()), num_rows)}
        for name, transport in TRANSPORTS.items():
            endpoint = stack.enter_context(server(transport))
            store = RemoteStore([endpoint], transport=transport, job_key=key)  # type: ignore[arg-type]
            stores[name] = fill(stack.enter_context(store), num_rows)
        cache = stack.enter_context(redis(num_rows, bytes(ROW_BYTES)))
        for n in SIZES:
            taken = interleave(sides_for(n, num_rows, stores, cache, echo), arguments.repeats)
            figures[str(n)] = taken
            report_size(n, taken)
    write_json(arguments.json, figures)


def report_size(n: int, taken: dict[str, tuple[float, float, float]]) -> None:
    """Print one table per batch size: the time of each side, then the ratios that have targets."""
    rows = []
    for verb in ("pull", "push"):
        for side in ("table", "echo", *TRANSPORTS, "redis"):
            if (figures := taken.get(f"{verb} {side}")) is not None:
                median, low, high = (seconds * 1e6 for seconds in figures)
                rate = f"{n / median:.2f} M"
                rows.append([f"{verb} {side}", f"{median:.0f}", f"{low:.0f} .. {high:.0f}", rate])
    report(f"{n:,} rows: microseconds a call", ["", "median", "range", "rows/s"], rows)
    for verb in ("pull", "push"):
        seconds = {side.split()[1]: t[0] for side, t in taken.items() if side.startswith(verb)}
        floor = seconds["echo"] + seconds["table"]
        verdict(f"{verb}, plain / (echo + table)", seconds["plain"] / floor, TARGET_FLOOR, "<=")
        extra = seconds["tls"] / seconds["plain"] - 1
        if n == 2_600 and verb == "pull":
            verdict(f"{verb}, extra by TLS", extra, TARGET_TLS, "<=")
        else:
            console.print(f"  {verb}, extra by TLS: {extra:.2f}")
        if "redis" in seconds:
            for side in TRANSPORTS:
                ratio = seconds["redis"] / seconds[side]
                verdict(f"{verb}, rows/s {side} / Redis", ratio, TARGET_REDIS, ">=")


def verdict(what: str, found: float, target: float, relation: str) -> None:
    met = found <= target if relation == "<=" else found >= target
    word = "[green]met[/green]" if met else "[red]missed[/red]"
    console.print(f"  {what}: {found:.2f} (target {relation} {target}) {word}")


if __name__ == "__main__":
    main()
