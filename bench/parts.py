"""The parts of a run of all benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A script with some arguments, whose figures form one entry of the record."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    expected_s: float
    """On a quiet machine with two cores."""
    quick_s: float
    """With --quick."""
    repeats: int = 5
    """Interleaved; None: not passed, for a script without repeats."""

    def command(self, python: str, out: Path, *, quick: bool, repeats: int | None) -> list[str]:
        command = [python, str(FOLDER / self.script), *self.arguments, "--json", str(out)]
        if quick:
            command.append("--quick")
        if self.repeats:
            command += ["--repeats", str(repeats or (1 if quick else self.repeats))]
        return command


PARTS = (
    Part(name="ctr-local", script="ctr_dnn.py", arguments=("--groups", "local"),
         repeats=7, expected_s=150, quick_s=17),
    Part(name="ctr-rounds", script="ctr_dnn.py", arguments=("--groups", "rounds"),
         repeats=7, expected_s=190, quick_s=22),
    Part(name="ctr-background", script="ctr_dnn.py", arguments=("--groups", "background"),
         repeats=7, expected_s=190, quick_s=12),
    Part(name="ctr-files", script="ctr_dnn.py", arguments=("--groups", "files"),
         repeats=3, expected_s=150, quick_s=9),
    Part(name="quality", script="ctr_quality.py", repeats=0, expected_s=1400, quick_s=25),
    Part(name="word2vec", script="word2vec.py", expected_s=315, quick_s=22),
    Part(name="skip-gram", script="skip_gram.py", expected_s=200, quick_s=14),
    Part(name="growth-rows", script="growth.py", arguments=("--by", "rows"),
         repeats=3, expected_s=20, quick_s=3),
    Part(name="growth-width", script="growth.py", arguments=("--by", "width"),
         repeats=3, expected_s=15, quick_s=3),
    Part(name="growth-batch", script="growth.py", arguments=("--by", "batch"),
         repeats=3, expected_s=130, quick_s=9),
    Part(name="growth-servers", script="growth.py", arguments=("--by", "servers"),
         repeats=3, expected_s=60, quick_s=6),
    Part(name="growth-workers", script="growth.py", arguments=("--by", "workers"),
         repeats=3, expected_s=60, quick_s=5),
    Part(name="growth-delay", script="growth.py", arguments=("--by", "delay"),
         repeats=3, expected_s=60, quick_s=8),
    Part(name="tables", script="tables.py", repeats=3, expected_s=25, quick_s=4),
    Part(name="rows", script="row_dtypes.py", arguments=("--part", "tables"),
         repeats=3, expected_s=40, quick_s=4),
    Part(name="transport", script="transport.py", expected_s=30, quick_s=8),
    Part(name="reader", script="reader.py", expected_s=200, quick_s=12),
    Part(name="checkpoint", script="checkpoint.py", repeats=3, expected_s=90, quick_s=5),
    Part(name="collective", script="collective.py", expected_s=240, quick_s=24),
    Part(name="doors", script="fluid_door.py", repeats=3, expected_s=250, quick_s=30),
    Part(name="serving", script="serving.py", arguments=("--seconds", "0.5"),
         repeats=0, expected_s=60, quick_s=12),
    Part(name="freshness", script="freshness.py", arguments=("--seconds", "10"),
         repeats=0, expected_s=25, quick_s=9),
)  # fmt: skip


def choose(only: Sequence[str], skipped: Sequence[str]) -> list[Part]:
    """Return the parts whose names start with one of `only` (all if empty), except the skipped.

    ValueError names a word with which no name starts.
    """
    for word in (*only, *skipped):
        if not _matching(PARTS, [word]):
            known = ", ".join(part.name for part in PARTS)
            raise ValueError(f"no part is called {word!r}; there are {known}")
    chosen = _matching(PARTS, only) if only else list(PARTS)
    left_out = _matching(PARTS, skipped)
    return [part for part in chosen if part not in left_out]


def _matching(parts: Iterable[Part], words: Sequence[str]) -> list[Part]:
    return [part for part in parts if any(part.name.startswith(word) for word in words)]
