"""Pull and push over loopback, with and without TLS, beside a bare socket echo and Redis.

    make bench            or    python bench/transport.py [--quick] [--repeats 5] [--json FILE]

Every side moves the same rows: the echo the same bytes between two native processes, Redis
by MGET and MSET with commands built beforehand and replies read but not parsed, which is
faster than any real client could be.
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
HEADER_BYTES = 40 + 13 + 64  # frame header, pull head, one section head with its name
READY_S = 30.0
JOB_KEY = os.urandom(32).hex()


@contextlib.contextmanager
def server(transport: str) -> Iterator[str]:
    """A `sparsefleet server` process; its endpoint."""
    command = [sys.executable, "-m", "sparsefleet.cli", "server", "--endpoint", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--transport", transport],
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
def redis(num_rows: int, row: bytes) -> Iterator[socket.socket | None]:
    """A socket to a Redis server of our own with ``num_rows`` rows; None where there is none."""
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
            for start in range(0, num_rows, 10_000):
                keys = range(start, min(start + 10_000, num_rows))
                exchange(connection, mset_command(keys, row), b"+OK\r\n")
            yield connection
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


def mget_command(keys: np.ndarray) -> bytes:
    return resp([b"MGET", *(int(key).to_bytes(8, "little") for key in keys)])


def mset_command(keys: np.ndarray | range, row: bytes) -> bytes:
    parts = [b"MSET"]
    for key in keys:
        parts += [int(key).to_bytes(8, "little"), row]
    return resp(parts)


def exchange(connection: socket.socket, command: bytes, reply: bytes | int) -> None:
    """Sends the command and reads its reply, given as its text or its length."""
    wanted = reply if isinstance(reply, int) else len(reply)
    buffer = memoryview(bytearray(wanted))
    connection.sendall(command)
    got = 0
    while got < wanted:
        n = connection.recv_into(buffer[got:])
        if n == 0:
            raise ConnectionError("redis closed the connection")
        got += n
    if not isinstance(reply, int) and bytes(buffer) != reply:
        raise RuntimeError(f"redis answered {bytes(buffer)!r}")


def fill(store: Store, num_rows: int) -> Store:
    store.define(
        TableSpec(name="t", dim=DIM, optimizer=optim.SGD(lr=0.01), initializer=Constant(0.1))
    )
    for start in range(0, num_rows, 100_000):
        store.pull("t", np.arange(start, min(start + 100_000, num_rows)))
    return store


def sides_for(
    n: int, num_rows: int, stores: dict[str, Store], cache: socket.socket | None, echo: Path
) -> dict[str, Callable[[], float]]:
    """Seconds a call, by side, for batches of ``n`` rows."""
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
        gets = [mget_command(keys) for keys in batches]
        sets = [mset_command(keys, bytes(ROW_BYTES)) for keys in batches]
        reply_bytes = len(b"*%d\r\n" % n) + n * (len(b"$%d\r\n" % ROW_BYTES) + ROW_BYTES + 2)
        sides["pull redis"] = lambda: time_call(
            lambda: exchange(cache, gets[next(turn) % 8], reply_bytes), rounds
        )
        sides["push redis"] = lambda: time_call(
            lambda: exchange(cache, sets[next(turn) % 8], b"+OK\r\n"), rounds
        )
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
        for transport in ("plain", "tls"):
            endpoint = stack.enter_context(server(transport))
            store = RemoteStore([endpoint], transport=transport, job_key=key)  # type: ignore[arg-type]
            stores[transport] = fill(stack.enter_context(store), num_rows)
        cache = stack.enter_context(redis(num_rows, bytes(ROW_BYTES)))
        for n in SIZES:
            taken = interleave(sides_for(n, num_rows, stores, cache, echo), arguments.repeats)
            figures[str(n)] = taken
            report_size(n, {name: t[0] for name, t in taken.items()})
    write_json(arguments.json, figures)


def report_size(n: int, seconds: dict[str, float]) -> None:
    """One table a batch size: what each side took, and the ratios that have targets."""
    rows = []
    for verb in ("pull", "push"):
        floor = seconds[f"{verb} echo"] + seconds[f"{verb} table"]
        plain, tls = seconds[f"{verb} plain"], seconds[f"{verb} tls"]
        cache = seconds.get(f"{verb} redis")
        rows.append(
            [
                verb,
                *(
                    f"{seconds[f'{verb} {side}'] * 1e6:.0f}"
                    for side in ("table", "echo", "plain", "tls")
                ),
                "-" if cache is None else f"{cache * 1e6:.0f}",
                f"{n / tls / 1e6:.2f} M",
                f"{plain / floor:.2f}",
                f"{tls / floor:.2f}",
                f"{(tls / plain - 1) * 100:.0f} %",
                "-" if cache is None else f"{cache / tls:.1f}",
            ]
        )
    report(
        f"{n:,} rows: microseconds a call (median)",
        [
            "",
            "table",
            "echo",
            "plain",
            "TLS",
            "Redis",
            "rows/s TLS",
            "plain / (echo + table)",
            "TLS / (echo + table)",
            "TLS extra",
            "Redis / TLS",
        ],
        rows,
    )


if __name__ == "__main__":
    main()
