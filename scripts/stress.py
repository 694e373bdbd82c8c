"""Runs tests repeatedly on a machine kept busy, and prints which ones do not always pass.

    python scripts/stress.py --runs 50 tests/faults

The exit code is 0 if every test passed every time. The output of each failed run is kept.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_BUSY = "while True: sum(range(100_000))"


def run_once(words: list[str], timeout_s: float) -> tuple[set[str], str]:
    """Run pytest once; return the ids of the tests that failed, and its output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        shown = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else ""
        return {f"(not done after {timeout_s:g} s)"}, shown
    failed = set(_FAILED.findall(done.stdout))
    if done.returncode != 0 and not failed:
        failed = {f"(pytest ended with {done.returncode})"}
    return failed, done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="number of runs (default 50)")
    parser.add_argument(
        "--load",
        type=int,
        default=os.cpu_count() or 1,
        help="processes that keep the machine busy (default: one per core)",
    )
    parser.add_argument("--timeout-s", type=float, default=1800.0, help="of one run")
    parser.add_argument(
        "--output", default="build/stress", help="folder for the output of failed runs"
    )
    parser.add_argument("words", nargs="*", help="arguments for pytest (default tests/faults)")
    options = parser.parse_args()
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    words = options.words or ["tests/faults"]
    failures: Counter[str] = Counter()
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(options.load)]
    try:
        for number in range(1, options.runs + 1):
            begun = time.monotonic()
            failed, shown = run_once(words, options.timeout_s)
            failures.update(failed)
            if failed:
                (output / f"run-{number}.txt").write_text(shown)
            seconds = time.monotonic() - begun
            told = ", ".join(sorted(failed)) or "all passed"
            print(f"run {number} of {options.runs}, {seconds:.0f} s: {told}", flush=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    for test, count in failures.most_common():
        print(f"{count} of {options.runs} runs: {test}")
    if failures:
        print(f"output of the failed runs: {output}/run-*.txt")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
