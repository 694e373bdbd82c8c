"""Rows of a table compared one by one: those of the export and those of a side.

Letters: N keys, D row width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.verify.model_table import ModelTable
from sparsefleet.verify.picked_rows import as_exported
from sparsefleet.verify.side import FoundRows, Side

__all__ = ["RowTally", "compare_rows"]

_CHUNK_ROWS = 16_384
_EXAMPLES = 5


@dataclass(kw_only=True, slots=True)
class RowTally:
    """What became of the rows of a table."""

    compared: int = 0
    same: int = 0
    missing: int = 0
    """Rows that one should have of the other, and has not."""
    extra: int = 0
    """Rows that the one has and the other does not know."""
    different: int = 0
    stale: int = 0
    """Those of the different ones that are as they were in the export before."""
    largest: float = 0.0
    """The largest difference of a value."""
    sampled: bool = False
    examples: dict[str, list[str]] = field(default_factory=dict)
    """Keys, and what is wrong with them, by kind."""

    def note(self, kind: str, keys: Keys, said: list[str] | None = None) -> None:
        """Remembers the first few."""
        known = self.examples.setdefault(kind, [])
        room = _EXAMPLES - len(known)
        texts = said if said is not None else [f"key {int(key)}" for key in keys[:room]]
        known.extend(texts[:room])

    def bound(self) -> float:
        """The share of wrong rows that a sample without any leaves possible, with 95 % confidence.

        >>> round(RowTally(compared=299, same=299, sampled=True).bound(), 4)
        0.01
        """
        return 1.0 - float(0.05 ** (1.0 / max(self.compared, 1)))


def compare_rows(
    file: ModelTable,
    side: Side,
    *,
    previous: ModelTable | None = None,
    sample: int | None = None,
    seed: int = 0,
) -> RowTally:
    """Compares all rows, or a sample of so many of the export's, bit by bit.

    previous: the table in the export before, to tell rows that are merely old.
    """
    tally = RowTally()
    parts = side.stream(file.entry.name)
    if parts is not None:
        _compare_stream(file, parts, side, previous, tally)
        return tally
    keys = file.keys
    if sample is not None and sample < len(keys):
        tally.sampled = True
        chosen = np.random.default_rng(seed).choice(len(keys), sample, replace=False)
        keys = keys[np.sort(chosen)]
    for begin in range(0, len(keys), _CHUNK_ROWS):
        part = keys[begin : begin + _CHUNK_ROWS]
        rows = side.fetch(file.entry.name, part)
        tally.missing += int((~rows.found).sum())
        tally.note("missing", part[~rows.found])
        _compare(file, rows, rows.values, previous, tally)
    facts = (side.tables() or {}).get(file.entry.name)
    if facts is not None and facts.rows is not None and not tally.sampled:
        tally.extra = max(0, facts.rows - (len(keys) - tally.missing))
    return tally


def _compare_stream(
    file: ModelTable,
    parts: Iterator[FoundRows],
    side: Side,
    previous: ModelTable | None,
    tally: RowTally,
) -> None:
    """All that the side has against the export: rows that only one has are told by who should."""
    seen = np.zeros(len(file.keys), np.bool_)
    is_training = side.role == "training"
    for part in parts:
        known = file.known(part.keys)
        kind = "missing" if is_training else "extra"
        setattr(tally, kind, getattr(tally, kind) + int((~known).sum()))
        tally.note(kind, part.keys[~known])
        seen[np.searchsorted(file.keys, part.keys[known])] = True
        wanted = part.values
        if is_training:
            wanted = as_exported(file, part.keys, part.values)
        _compare(file, FoundRows(part.keys, known, part.values), wanted, previous, tally)
    kind = "extra" if is_training else "missing"
    setattr(tally, kind, getattr(tally, kind) + int((~seen).sum()))
    tally.note(kind, file.keys[~seen])


def _compare(
    file: ModelTable, rows: FoundRows, values: Floats, previous: ModelTable | None, tally: RowTally
) -> None:
    """Values of rows that both have."""
    keys, values = rows.keys[rows.found], values[rows.found]
    own = file.rows_of(keys, "zeros")
    wrong = ~_equal_rows(own, values)
    tally.compared += len(keys)
    tally.same += int((~wrong).sum())
    tally.different += int(wrong.sum())
    if not wrong.any():
        return
    keys, own, values = keys[wrong], own[wrong], values[wrong]
    with np.errstate(invalid="ignore"):
        gap = np.abs(own.astype(np.float64) - values)
    gaps = np.nan_to_num(gap, nan=np.inf).max(axis=1, initial=0.0)
    tally.largest = max(tally.largest, float(gaps.max()))
    tally.note("different", keys, _said(keys, own, values))
    if previous is not None and previous.entry.dim == file.entry.dim:
        old = previous.known(keys)
        old[old] = _equal_rows(previous.rows_of(keys[old], "zeros"), values[old])
        tally.stale += int(old.sum())


def _equal_rows(one: Floats, other: Floats) -> NDArray[np.bool_]:
    """bool[N]: which rows have equal bits, or both zero or both NaN where they have not."""
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    equal: NDArray[np.bool_] = same.all(axis=1)
    return equal


def _said(keys: Keys, own: Floats, values: Floats) -> list[str]:
    """The first value that differs, of the first few rows."""
    texts = []
    for key, left, right in zip(keys[:_EXAMPLES], own, values, strict=False):
        at = int(np.argmax(left != right))
        texts.append(f"key {int(key)}, value {at}: export {left[at]:.6g}, other {right[at]:.6g}")
    return texts
