"""Latency and rate of `sparsefleet serve`, with rows in files and in Redis, compared with ONNX
Runtime.

    make bench     or     python bench/serving.py [--quick] [--seconds 3] [--hold 60] [--json FILE]

Clients run in a separate process; each sends one request after another over its own connection.
--hold N loads the service with 16 clients for N more seconds: no request may fail, and its memory
must stay what it was after the first tenth.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import ROOT, console, machine, report, write_json
from serving_model import Bare, as_arrow, as_json, examples, export

NUM_ROWS = {False: 200_000, True: 20_000}
"""By --quick."""
CLIENTS = (1, 16, 64)
ARROW = "application/vnd.apache.arrow.stream"
READY_S = 120.0
FLAT = 0.05  # of memory growth allowed during a hold
FORMS = {
    "1 row, JSON": (1, "application/json"),
    "100 rows, JSON": (100, "application/json"),
    "100 rows, Arrow": (100, ARROW),
}


class Service:
    """A running `sparsefleet serve`."""

    def __init__(self, process: subprocess.Popen[str], host: str, port: int) -> None:
        self.process = process
        self.host = host
        self.port = port

    def load(self, body: Path, kind: str, clients: int, seconds: float) -> dict[str, Any]:
        """The clients' measurements."""
        script = ROOT / "bench" / "serving_load.py"
        command = [sys.executable, str(script), self.host, str(self.port), str(body), kind]
        flags = ["--clients", str(clients), "--seconds", str(seconds)]
        done = subprocess.run([*command, *flags], capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def memory_bytes(self) -> int:
        """Return resident memory; mapped files count only as far as they were read."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        raise RuntimeError("no VmRSS")


@contextlib.contextmanager
def serving(directory: Path, *flags: str) -> Iterator[Service]:
    command = [sys.executable, "-m", "sparsefleet", "serve", str(directory), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--engine", "onnx", *flags], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://([\d.]+):(\d+)", line)
        if found is None:
            raise RuntimeError(f"the service ended before it was ready: {line}")
        yield Service(process, found[1], int(found[2]))
    finally:
        process.terminate()
        process.wait(READY_S)


@contextlib.contextmanager
def redis_with_rows(directory: Path) -> Iterator[str | None]:
    """Yield the address of a private Redis with the rows; None if Redis is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        console.print("redis-server is not installed: run scripts/install_system_packages.sh")
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        settings = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        process = subprocess.Popen([program, *settings], cwd=folder, stdout=subprocess.DEVNULL)
        try:
            wait_for(port)
            url = f"redis://127.0.0.1:{port}/0?model=bench"
            push = [sys.executable, "-m", "sparsefleet", "push-rows", str(directory), url]
            subprocess.run([*push, "--activate"], check=True, stdout=subprocess.DEVNULL)
            yield url
        finally:
            process.terminate()
            process.wait(READY_S)


def wait_for(port: int) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=READY_S).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def measure(
    sides: dict[str, Service],
    bare: Bare,
    bodies: dict[str, Path],
    seconds: float,
    every_clients: tuple[int, ...],
    num_rows: int,
) -> dict[str, dict[str, Any]]:
    """Measure every form and number of clients, with the sides in turn."""
    found: dict[str, dict[str, Any]] = {}
    for form, (batch, kind) in FORMS.items():
        for clients in every_clients:
            for side, service in sides.items():
                service.load(bodies[form], kind, clients, min(1.0, seconds))
                taken = service.load(bodies[form], kind, clients, seconds)
                found[f"{side}, {form}, {clients} clients"] = taken
            if kind != ARROW:
                inputs = examples(batch, num_rows)
                name = f"bare ONNX Runtime, {batch} rows, {clients} threads"
                found[name] = bare.measure(inputs, clients, seconds)
    return found


def hold(service: Service, body: Path, seconds: float) -> dict[str, Any]:
    """Apply sustained load: count errors, and watch the memory."""
    service.load(body, "application/json", 16, seconds / 10)
    before = service.memory_bytes()
    found = service.load(body, "application/json", 16, seconds)
    after = service.memory_bytes()
    return {**found, "memory_before": before, "memory_after": after}


def show(found: dict[str, dict[str, Any]]) -> None:
    rows = [
        (
            name,
            f"{one['p50_ms']:.2f}",
            f"{one['p99_ms']:.2f}",
            f"{one['requests'] / one['seconds']:,.0f}",
            str(one["errors"]),
        )
        for name, one in found.items()
    ]
    report(f"serving ({machine()})", ("", "p50 ms", "p99 ms", "requests/s", "errors"), rows)


def show_hold(side: str, one: dict[str, Any]) -> bool:
    """Return whether it held."""
    grown = one["memory_after"] / one["memory_before"] - 1
    console.print(
        f"{side}, held for {one['seconds']:.0f} s: {one['requests']:,} requests, "
        f"{one['errors']} errors, p99 {one['p99_ms']:.1f} ms, memory "
        f"{one['memory_before'] / 2**20:.0f} MiB, then {grown:+.1%}"
    )
    return one["errors"] == 0 and grown <= FLAT


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short, to check that it runs")
    parser.add_argument("--seconds", type=float, default=3.0, help="per measurement (default 3)")
    parser.add_argument("--hold", type=float, default=0.0, help="seconds of load for each store")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    seconds = 0.1 if options.quick else options.seconds
    num_rows = NUM_ROWS[options.quick]
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        export(folder / "model", num_rows)
        bodies = {}
        for form, (batch, kind) in FORMS.items():
            bodies[form] = folder / form
            write = as_arrow if kind == ARROW else as_json
            bodies[form].write_bytes(write(examples(batch, num_rows)))
        sides = {"files": stack.enter_context(serving(folder / "model"))}
        url = stack.enter_context(redis_with_rows(folder / "model"))
        if url is not None:
            sides["Redis"] = stack.enter_context(serving(folder / "model", "--rows", url))
            cold = serving(folder / "model", "--rows", url, "--cache-bytes", "0")
            sides["Redis, no cache"] = stack.enter_context(cold)
        every_clients = CLIENTS[:2] if options.quick else CLIENTS
        bare = Bare(folder / "model", num_rows)
        found = measure(sides, bare, bodies, seconds, every_clients, num_rows)
        show(found)
        held = True
        if options.hold:
            for side, service in sides.items():
                one = hold(service, bodies["1 row, JSON"], options.hold)
                held = show_hold(side, one) and held
                found[f"{side}, hold"] = one
    write_json(options.json, {"serving": found})
    failed = [name for name, one in found.items() if one["errors"]]
    if failed or not held:
        console.print(f"errors or growing memory: {', '.join(failed) or 'memory'}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
