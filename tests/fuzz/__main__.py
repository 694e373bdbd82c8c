"""Run fuzz targets for a while: `python -m tests.fuzz --seconds 60 exports http`.

Each input is written to a file before it runs, so that one that kills the process is not lost. An
input that fails is kept in the same place; `--replay FILE` runs it again.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_SLOW_S = 20.0
TARGETS = ("exports", "checkpoints", "http")


class Target(Protocol):
    def make(self, draw: random.Random) -> bytes:
        """Return an input."""

    def run(self, raw: bytes) -> str:
        """Run an input and return the outcome; an unexpected one is raised."""


def open_target(name: str) -> Target:
    if name == "exports":
        from tests.fuzz.exports import ExportsTarget

        return ExportsTarget()
    if name == "checkpoints":
        from tests.fuzz.checkpoints import CheckpointsTarget

        return CheckpointsTarget()
    from tests.fuzz.http_bodies import HttpTarget

    return HttpTarget()


def fuzz(name: str, target: Target, folder: Path, *, seconds: float, seed: int) -> int:
    """Return the number of inputs that failed."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    outcomes: Counter[str] = Counter()
    failures: dict[str, Path] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        raw = target.make(draw)
        current = folder / f"{name}-current"
        current.write_bytes(raw)
        outcome = attempt(lambda raw=raw: target.run(raw))  # type: ignore[misc]
        outcomes[outcome.partition(":")[0]] += 1
        if outcome.startswith("FAILED") and outcome not in failures:
            kept = folder / f"{name}-{hashlib.sha256(raw).hexdigest()[:16]}"
            kept.write_bytes(raw)
            failures[outcome] = kept
            print(f"{name}: {outcome}: {kept}", flush=True)
    (folder / f"{name}-current").unlink(missing_ok=True)
    said = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common())
    print(f"{name}: {outcomes.total():,} inputs in {seconds:g} s (seed {seed}): {said}", flush=True)
    return len(failures)


def attempt(run: Callable[[], str]) -> str:
    begin = time.process_time()
    try:
        outcome = run()
    except Exception as error:  # any exception is a finding
        text = str(error).partition("\n")[0]
        return f"FAILED: {type(error).__name__}: {text:.120}"
    taken = time.process_time() - begin
    return outcome if taken < _SLOW_S else f"FAILED: slow, {taken:.0f} s of CPU time"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"some of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=None, help="default: a random one")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz/python"))
    parser.add_argument("--replay", type=Path, help="run this input of one target")
    options = parser.parse_args()
    names = options.targets or list(TARGETS)
    if unknown := sorted(set(names) - set(TARGETS)):
        parser.error(f"unknown targets: {', '.join(unknown)}")
    if options.replay is not None:
        print(open_target(names[0]).run(options.replay.read_bytes()))
        return 0
    seed = options.seed if options.seed is not None else random.randrange(2**32)
    failed = [
        fuzz(name, open_target(name), options.folder, seconds=options.seconds, seed=seed)
        for name in names
    ]
    return 1 if any(failed) else 0


if __name__ == "__main__":
    sys.exit(main())
