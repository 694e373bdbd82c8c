"""Shared by the benchmarks: interleaved repeats, medians, the machine, the report."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")
console = Console(width=110)


def parse_arguments(description: str) -> argparse.Namespace:
    """The options of `argument_parser`."""
    return argument_parser(description).parse_args()


def argument_parser(description: str) -> argparse.ArgumentParser:
    """``--quick`` for a smoke run, ``--repeats``, ``--json FILE`` for the figures."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to check that it runs")
    parser.add_argument("--repeats", type=int, default=5, help="interleaved repeats (default 5)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser


def interleave(
    sides: Mapping[str, Callable[[], float]], repeats: int
) -> dict[str, tuple[float, float, float]]:
    """Run every side once per round, in turn; return each side's (median, min, max)."""
    taken = take_turns(sides, repeats)
    return {name: (statistics.median(t), min(t), max(t)) for name, t in taken.items()}


def take_turns(sides: Mapping[str, Callable[[], T]], repeats: int) -> dict[str, list[T]]:
    """Run every side once per round, in turn; return the results by side, without the first round.

    Sides take turns because machines are shared and drift: sides measured one after another would
    not be comparable.
    """
    taken: dict[str, list[T]] = {name: [] for name in sides}
    for side in sides.values():
        side()  # warm
    for _ in range(repeats):
        for name, side in sides.items():
            taken[name].append(side())
    return taken


def time_call(call: Callable[[], object], rounds: int) -> float:
    """Return the median seconds of ``call``."""
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def time_threads(work: Sequence[Callable[[], object]], rounds: int) -> float:
    """Return the seconds until every thread has made its call ``rounds`` times, from a common
    start.
    """
    gate = threading.Barrier(len(work) + 1)

    def run(call: Callable[[], object]) -> None:
        gate.wait()
        for _ in range(rounds):
            call()

    threads = [threading.Thread(target=run, args=(call,)) for call in work]
    for thread in threads:
        thread.start()
    # Before the gate, so that a late main thread does not shorten the time.
    start = time.perf_counter()
    gate.wait()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def busy_s() -> float:
    """Return the CPU time of the whole machine so far."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, soft, steal = map(int, fields[:8])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def machine() -> str:
    """Return one line about the machine."""
    return (
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()}, "
        f"Python {platform.python_version()}"
    )


def _processor() -> str:
    """Return the processor's name, and its family and model where Linux reports them: virtual
    machines give processors of several generations the same name.
    """
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.machine()
    first = cpuinfo.read_text().split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    values = {name.strip(): value.strip() for name, _, value in pairs}
    name = values.get("model name", platform.machine())
    if "cpu family" not in values:
        return name
    return f"{name} (family {values['cpu family']}, model {values.get('model', '?')})"


def report(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def judge(text: str, holds: bool) -> None:
    """Print a target, what was measured, and whether the target was met."""
    verdict, colour = ("met", "green") if holds else ("missed", "red")
    console.print(f"  {text} [{colour}]{verdict}[/{colour}]", highlight=False)


def note(text: str) -> None:
    """Print a note on the table above."""
    console.print(f"  {text}", highlight=False, markup=False)


def write_json(path: Path | None, figures: Mapping[str, object]) -> None:
    """Write the figures and the machine they were measured on, if a path is given."""
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), **figures}, indent=2) + "\n")


def native_tool(name: str) -> Path:
    """Build a ``core/**/<name>.cc`` benchmark program if necessary; return its path."""
    build = ROOT / "build" / "bench"
    tools = Path(sys.executable).parent  # cmake and ninja from the virtual environment
    quiet = {"stdout": subprocess.DEVNULL, "check": True}
    options = ["-DSPARSEFLEET_BENCH=ON", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"]
    subprocess.run([tools / "cmake", "-S", ROOT, "-B", build, "-G", "Ninja", *options], **quiet)
    subprocess.run([tools / "cmake", "--build", build, "--target", name], **quiet)
    return next(path for path in build.rglob(name) if path.is_file())
