"""Compare a table in the export with the same table in another copy of the model, row by row.

In shapes, N is the number of keys, D the row width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sparsefleet.serving.export.keyed_rows import KeyedRows
from sparsefleet.serving.export.quantization import decode_rows, encode_rows
from sparsefleet.serving.verify.case import ModelTable
from sparsefleet.serving.verify.side import FoundRows, Side
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["FetchedRows", "KeyRecorder", "PickedRows", "RowTally", "as_exported", "compare_rows"]


class KeyRecorder(KeyedRows):
    """Forwards lookups to another table and records their keys. Not thread-safe."""

    def __init__(self, table: KeyedRows) -> None:
        super().__init__(table.entry, table.initial)
        self._table = table
        self._keys: list[Keys] = [np.empty(0, np.uint64)]

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        self._keys.append(keys)
        return self._table.find(keys)

    @property
    def keys(self) -> Keys:
        """Return all keys that were looked up, in ascending order."""
        return np.unique(np.concatenate(self._keys))


class FetchedRows(KeyedRows):
    """A table that fetches each row from a side when it is looked up."""

    def __init__(self, table: KeyedRows, fetch: Callable[[Keys], FoundRows]) -> None:
        super().__init__(table.entry, table.initial)
        self._fetch = fetch

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        part = self._fetch(keys)
        return np.where(part.found[:, None], part.values, np.float32(0)), part.found


class PickedRows(KeyedRows):
    """A table that keeps the required rows of a stream in memory.

    parts: keys, uint64[N], and rows, float32[N, D]; each key occurs once.
    """

    def __init__(
        self, table: KeyedRows, needed: Keys, parts: Iterable[tuple[Keys, Floats]]
    ) -> None:
        super().__init__(table.entry, table.initial)
        picked = [(np.empty(0, np.uint64), np.empty((0, table.entry.dim), np.float32))]
        for keys, rows in parts:
            wanted = np.isin(keys, needed)
            picked.append((keys[wanted], rows[wanted]))
        keys = np.concatenate([part for part, _ in picked])
        order = np.argsort(keys)
        self._keys: Keys = keys[order]
        self._rows: Floats = np.concatenate([part for _, part in picked])[order]

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        rows = np.zeros((len(keys), self.entry.dim), np.float32)
        known = np.isin(keys, self._keys)
        rows[known] = self._rows[np.searchsorted(self._keys, keys[known])]
        return rows, known


def as_exported(table: KeyedRows, keys: Keys, values: Floats) -> Floats:
    """Return training rows, float32[N, D], rounded like an export in the table's format."""
    entry = table.entry
    if entry.format == "float32":
        return values
    return decode_rows(encode_rows(entry.name, keys, values, entry.format))


_CHUNK_ROWS = 16_384
_EXAMPLES = 5


@dataclass(kw_only=True, slots=True)
class RowTally:
    """Counts of equal and different rows in a table."""

    compared: int = 0
    same: int = 0
    missing: int = 0
    """Rows that should have been copied but were not."""
    extra: int = 0
    """Rows that are in the copy but not in the original."""
    different: int = 0
    stale: int = 0
    """Number of different rows that equal the rows of the previous export."""
    largest: float = 0.0
    """The largest difference between values."""
    sampled: bool = False
    examples: dict[str, list[str]] = field(default_factory=dict)
    """The first keys of each kind of difference, with details."""

    def note(self, kind: str, keys: Keys, text: list[str] | None = None) -> None:
        """Record the first few keys as examples."""
        known = self.examples.setdefault(kind, [])
        room = _EXAMPLES - len(known)
        texts = text if text is not None else [f"key {int(key)}" for key in keys[:room]]
        known.extend(texts[:room])

    def bound(self) -> float:
        """Return the 95% upper bound on the fraction of wrong rows, given a sample without any.

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
    """Compare all rows bit by bit, or a sample of the exported rows.

    previous: the table in the previous export, to recognize stale rows.
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
    """Compare all rows of the side with the rows of the export.

    A row that exists on only one of them is missing or extra, depending on which is the original.
    """
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
    """Compare the values of the rows that both the export and the side have."""
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
    tally.note("different", keys, _described(keys, own, values))
    if previous is not None and previous.entry.dim == file.entry.dim:
        old = previous.known(keys)
        old[old] = _equal_rows(previous.rows_of(keys[old], "zeros"), values[old])
        tally.stale += int(old.sum())


def _equal_rows(one: Floats, other: Floats) -> NDArray[np.bool_]:
    """Return which rows are equal, bool[N]. NaN counts as equal to NaN, and 0 to -0."""
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    equal: NDArray[np.bool_] = same.all(axis=1)
    return equal


def _described(keys: Keys, own: Floats, values: Floats) -> list[str]:
    """Describe the first differing value of the first few rows."""
    texts = []
    for key, left, right in zip(keys[:_EXAMPLES], own, values, strict=False):
        at = int(np.argmax(left != right))
        texts.append(f"key {int(key)}, value {at}: export {left[at]:.6g}, other {right[at]:.6g}")
    return texts
