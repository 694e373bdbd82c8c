"""Runs all benchmarks, one part after another, and writes the report of the day with its charts.

    make bench            or    python bench/run_all.py
    make bench-quick      or    python bench/run_all.py --quick
    python bench/run_all.py --only ctr,growth-delay       # parts whose names start with these
    python bench/run_all.py --report-only                 # rewrite the report from the record

The figures of the day are kept in bench/results/<date>.json, written as each part finishes: a run
may be stopped and continued with --only or --missing. The report covers all of them. A quick run
writes to build/bench/quick/, because its figures are not measurements. Run nothing else at the same
time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from charts import draw_charts
from day_record import SKIPPED, DayRecord, circumstances
from day_report import write_report
from measure import ROOT, console
from parts import FOLDER, PARTS, Part, choose

PATIENCE = 5.0
"""A part is ended after this multiple of its expected time plus `GRACE_S`."""
GRACE_S = 300.0
TAIL_BYTES = 1_500
QUIET_LOAD = 0.7


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, under five minutes")
    parser.add_argument(
        "--only", default="", help="parts whose names start with these, separated by commas"
    )
    parser.add_argument("--skip", default="", help="parts to skip, likewise")
    parser.add_argument(
        "--missing", action="store_true", help="only parts that the day's record lacks"
    )
    parser.add_argument("--repeats", type=int, help="instead of each part's own number (3 or 5)")
    parser.add_argument("--results", type=Path, help="folder of the record and the report")
    parser.add_argument("--images", type=Path, help="folder of the charts")
    parser.add_argument("--day", default=time.strftime("%Y-%m-%d"), help="name of the record")
    parser.add_argument("--report-only", action="store_true", help="run nothing")
    parser.add_argument(
        "--list", action="store_true", help="list the parts and their expected times"
    )
    return parser.parse_args()


def words(text: str) -> list[str]:
    """Split a comma-separated list."""
    return [word.strip() for word in text.split(",") if word.strip()]


def folders(options: argparse.Namespace) -> tuple[Path, Path]:
    """Return the folders of the record with the report, and of the charts."""
    quick = ROOT / "build" / "bench" / "quick"
    results = options.results or (quick if options.quick else ROOT / "bench" / "results")
    default = results / "images" if options.results or options.quick else ROOT / "docs" / "images"
    return results, options.images or default


def run_part(part: Part, options: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """Return an entry of the record, whatever happens to the part."""
    entry = {**circumstances(), "quick": options.quick, "took_s": 0.0, "cpu_s": 0.0}
    entry |= {"error": None, "figures": {}}
    begun, cpu_begun_s = time.monotonic(), children_cpu_s()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = part.command(sys.executable, out, quick=options.quick, repeats=options.repeats)
        entry["command"] = shown(command, out)
        if not (FOLDER / part.script).exists():
            entry["error"] = f"{SKIPPED}: there is no bench/{part.script}"
            return entry
        expected_s = part.quick_s if options.quick else part.expected_s
        log = logs / f"{part.name}.log"
        entry["error"] = follow(command, log, PATIENCE * expected_s + GRACE_S)
        if out.exists():  # a script may report missed targets by its exit code
            entry["figures"] = json.loads(out.read_text(encoding="utf-8"))
            entry["error"] = None
    entry["took_s"] = round(time.monotonic() - begun, 1)
    entry["cpu_s"] = round(children_cpu_s() - cpu_begun_s, 1)
    return entry


def children_cpu_s() -> float:
    """Return the user and system time of all finished child processes."""
    taken = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken.ru_utime + taken.ru_stime


def shown(command: list[str], out: Path) -> str:
    """Return the command as a user would type it."""
    typed = ["python", os.path.relpath(command[1], ROOT), *command[2:]]
    return " ".join("FILE" if word == str(out) else word for word in typed)


def follow(command: list[str], log: Path, deadline_s: float) -> str | None:
    """Run to the end or the deadline, shown and logged; return what went wrong."""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    end = time.monotonic() + deadline_s
    with log.open("wb") as file, started(command, environ, deadline_s) as process:
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            sys.stdout.write(line.decode(errors="replace"))
            sys.stdout.flush()
        code = process.wait()
    if code == 0:
        return None
    what = f"exited with code {code}"
    if time.monotonic() >= end:
        what = f"was ended after {deadline_s:.0f} s, its deadline"
    tail = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
    return f"{what}; it last said:\n{tail}"


@contextlib.contextmanager
def started(
    command: list[str], environ: dict[str, str], deadline_s: float
) -> Iterator[subprocess.Popen[bytes]]:
    """Run in a new session, so that no process is left over afterwards."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )

    def end_all() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(deadline_s, end_all)
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        end_all()
        with process:  # waits, and closes its output
            pass


def run_parts(parts: list[Part], record: DayRecord, options: argparse.Namespace) -> None:
    """Run one after another; record each as it ends."""
    logs = ROOT / "build" / "bench" / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    expected = {part: part.quick_s if options.quick else part.expected_s for part in parts}
    for number, part in enumerate(parts):
        left_min = sum(expected[other] for other in parts[number:]) / 60
        console.rule(
            f"{number + 1} of {len(parts)}: {part.name}, about {expected[part]:.0f} s; "
            f"until the end about {left_min:.0f} min"
        )
        if (load := os.getloadavg()[0]) > QUIET_LOAD * (os.cpu_count() or 1):
            console.print(
                f"load {load:.1f}: something else is running, or the last part still shows"
            )
        entry = run_part(part, options, logs)
        record.put(part.name, entry)
        outcome = entry["error"] or f"{entry['took_s']:.0f} s, CPU {entry['cpu_s']:.0f} s"
        console.print(f"{part.name}: {outcome}", highlight=False, markup=False)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # its part ends too
    options = parse_arguments()
    if options.list:
        for part in PARTS:
            console.print(f"{part.name:16} {part.expected_s:4.0f} s, quick {part.quick_s:3.0f} s")
        return 0
    results, images = folders(options)
    record = DayRecord(results / f"{options.day}.json")
    try:
        parts = choose(
            *(words.split(",") if words else [] for words in (options.only, options.skip))
        )
    except ValueError as error:
        console.print(str(error), style="red", highlight=False)
        return 2
    if options.missing:
        parts = [part for part in parts if record.figures(part.name) is None]
    if not options.report_only:
        run_parts(parts, record, options)
    charts = draw_charts(record, images)
    page = write_report(record, charts)
    console.print(f"report: {page}; charts: {images}", highlight=False)
    failed = [part.name for part in parts if record.has_failed(part.name)]
    if failed and not options.report_only:
        console.print(f"without figures: {', '.join(failed)}", style="red", highlight=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
