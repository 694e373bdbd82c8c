"""Runs tests again and again on a machine kept busy, and prints which ones do not always pass.

    python scripts/stress.py --runs 50                    # the fault tests, Python and C++
    python scripts/stress.py --seconds 1800 tests/faults  # pytest's words, for half an hour
    python scripts/stress.py --at-most-s 3                # all once, then only the quick ones

Every run takes the test files in another order (--seed). Busy processes compute and sync files to
disk, as other tests do. The end is a table: how often each test failed, of how many runs, and how.
The output of failed runs is kept. The exit code is 0 if every test passed every time.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/faults",
    "tests/process/test_launch.py",
    "tests/process/test_launch_restarts.py",
    "tests/process/test_launch_nodes.py",
    "tests/process/test_launch_replica.py",
    "tests/process/test_lost_worker.py",
    "tests/process/test_preemption.py",
    "tests/process/test_ray_jobs.py",
    "tests/process/test_restarts_alone.py",
    "tests/process/test_resumed_job.py",
    "tests/regressions/test_cause_of_a_failed_job.py",
    "tests/regressions/test_foreign_members.py",
    "tests/regressions/test_saving_in_changing_jobs.py",
    "tests/regressions/test_serve_exhaustion.py",
    "tests/regressions/test_strangers_without_the_key.py",
    "tests/unit/collective/test_world.py",
    "tests/unit/fleet/test_meeting.py",
)
"""Tests that kill, stop, cut off and wait for others."""
NATIVE = "fault|strangers|durable|memory|heartbeat|session|rounds|retr|command_queue|watch"
"""The C++ tests of this kind, for ctest -R."""

_COMPUTE = "while True: sum(range(100_000))"
_WRITE = (
    "import os, sys, tempfile\n"
    "with tempfile.NamedTemporaryFile() as file:\n"
    "    while True:\n"
    "        file.seek(0); file.write(bytes(1 << 20)); file.flush(); os.fsync(file.fileno())\n"
)


class Failure(NamedTuple):
    """One failed test of one run."""

    test: str
    how: str


@contextmanager
def busy_machine(load: int) -> Iterator[None]:
    """Keep `load` processes computing, and one writing."""
    code = [*([_COMPUTE] * load), *([_WRITE] if load else [])]
    processes = [subprocess.Popen([sys.executable, "-c", each]) for each in code]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(command: list[str], output: Path, timeout_s: float) -> int | None:
    """Run a command with its output in a file; None if it took too long and was killed."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(timeout_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                return None
            raise


def failures_in(report: Path, seconds: dict[str, float]) -> tuple[list[Failure], int]:
    """Return the failures in a JUnit report, and the number of tests that ran.

    seconds: gets how long each Python test took, by its place.
    """
    failed, total = [], 0
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}".removeprefix("::")
        if case.find("skipped") is not None:
            continue
        total += 1
        if file := case.get("file"):
            seconds[f"{file}::{case.get('name', '')}"] = float(case.get("time") or 0)
        for kind in ("failure", "error"):
            for problem in case.findall(kind):
                text = (problem.get("message") or problem.text or kind).strip()
                failed.append(Failure(name, text.splitlines()[0][:160] if text else kind))
    return failed, total


def run_once(
    command: list[str], flag: str, kept: Path, timeout_s: float, seconds: dict[str, float]
) -> tuple[list[Failure], int]:
    """Run a test command that writes a JUnit report; keep its output if something failed.

    seconds: see `failures_in`.
    """
    report = kept.with_suffix(".xml")
    report.unlink(missing_ok=True)
    code = run([*command, flag, str(report)], kept, timeout_s)
    name = "pytest" if "pytest" in command else "ctest"
    if code is None:
        return [Failure(f"({name})", f"not done after {timeout_s:g} s; see {kept}")], 0
    try:
        failed, total = failures_in(report, seconds)
    except (OSError, ElementTree.ParseError):
        return [Failure(f"({name})", f"exited with {code} and wrote no report; see {kept}")], 0
    if code != 0 and not failed:
        failed = [Failure(f"({name})", f"exited with {code}; see {kept}")]
    report.unlink()
    if not failed:
        kept.unlink()
    return failed, total


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=50, help="how often (default 50)")
    parser.add_argument("--seconds", type=float, help="begin no further run after this long")
    parser.add_argument(
        "--load",
        type=int,
        default=2 * (os.cpu_count() or 1),
        help="processes that compute meanwhile (default: two per core; 0: an idle machine)",
    )
    parser.add_argument(
        "--at-most-s",
        type=float,
        metavar="S",
        help="after the first run, leave out Python tests that took longer than this",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the order of files")
    parser.add_argument("--timeout-s", type=float, default=1800.0, help="of one run")
    parser.add_argument("--output", default="build/stress", help="gets the output of failed runs")
    parser.add_argument("--native", metavar="BUILD", help="also run C++ fault tests of this build")
    parser.add_argument("words", nargs="*", help="for pytest (default: tests that break things)")
    return parser.parse_args()


def commands(
    options: argparse.Namespace, order: random.Random, chosen: list[str]
) -> list[tuple[list[str], str]]:
    """Return the commands of one run, each with its flag for a JUnit report.

    chosen: the Python tests; all if empty.
    """
    words = list(chosen or options.words or TESTS)
    if chosen:
        names = (ROOT / options.output).resolve() / "chosen.txt"
        files = list(dict.fromkeys(word.partition("::")[0] for word in words))
        order.shuffle(files)
        words.sort(key=lambda word: files.index(word.partition("::")[0]))
        names.write_text("\n".join(words), encoding="utf-8")
        words = [f"@{names}"]
    elif not options.words:
        order.shuffle(words)
        words += ["-m", "not slow"]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    found = [([*pytest, "-o", "junit_family=xunit1", *words], "--junitxml")]
    if options.native:
        ctest = str(Path(sys.executable).with_name("ctest"))
        found.append(
            ([ctest, "--test-dir", options.native, "-R", NATIVE, "-j", "2"], "--output-junit")
        )
    return found


def run_all(options: argparse.Namespace, output: Path) -> tuple[int, int, dict[str, list[str]]]:
    """Run until the runs or the time are over, or Ctrl-C; return runs, tests and the failures."""
    order = random.Random(options.seed)
    failures: dict[str, list[str]] = {}
    chosen: list[str] = []
    begun = time.monotonic()
    number = tests = 0
    try:
        while number < options.runs:
            if options.seconds and number and time.monotonic() - begun > options.seconds:
                break
            start, failed = time.monotonic(), []
            seconds: dict[str, float] = {}
            for command, flag in commands(options, order, chosen):
                kind = "pytest" if "pytest" in command else "ctest"
                kept = output / f"run-{number + 1}-{kind}.txt"
                found, total = run_once(command, flag, kept, options.timeout_s, seconds)
                failed += found
                tests += total
            number += 1
            for test, how in failed:
                failures.setdefault(test, []).append(f"run {number}: {how}")
            told = ", ".join(sorted(test for test, _ in failed)) or "all passed"
            print(
                f"run {number} of {options.runs}, {time.monotonic() - start:.0f} s: {told}",
                flush=True,
            )
            if options.at_most_s and number == 1:
                chosen = [test for test, took in seconds.items() if took <= options.at_most_s]
                print(
                    f"{len(chosen)} of {len(seconds)} Python tests took at most "
                    f"{options.at_most_s:g} s, {sum(map(seconds.__getitem__, chosen)):.0f} s in "
                    "all; the other runs repeat these",
                    flush=True,
                )
    except KeyboardInterrupt:
        print(f"interrupted in run {number + 1}, which does not count")
    return number, tests, failures


def main() -> int:
    options = arguments()
    output = (ROOT / options.output).resolve()
    output.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with busy_machine(options.load):
        number, tests, failures = run_all(options, output)
    print(
        f"\n{tests} tests in {number} runs, {time.monotonic() - begun:.0f} s, load {options.load}"
    )
    for test, how in sorted(failures.items(), key=lambda item: -len(item[1])):
        print(f"{len(how)} of {number} runs: {test}")
        for each in how[:3]:
            print(f"    {each}")
    if failures:
        print(f"output of the failed runs: {output}/run-*.txt")
    return 1 if failures or not number else 0


if __name__ == "__main__":
    sys.exit(main())
