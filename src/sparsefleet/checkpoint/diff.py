"""Compare two checkpoints.

In shapes, N is the number of rows in a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint.checkpoint import Checkpoint, find_in
from sparsefleet.checkpoint.manifest import TableEntry
from sparsefleet.checkpoint.row_chunk import RowChunk

__all__ = ["CheckpointDiff", "TableDiff", "TensorDiff", "diff"]

_PART_ROWS = 8_000_000  # uses 24 bytes per row


@dataclass(frozen=True, kw_only=True, slots=True)
class TableDiff:
    """The differences between two versions of a table."""

    name: str
    same: int
    """Number of rows that are bitwise equal in both versions."""
    changed: int
    """Number of rows whose values, state or counters differ."""
    values_changed: int
    """Number of changed rows whose values differ."""
    only_in_a: int
    only_in_b: int
    keys: dict[str, list[int]]
    """Sample keys for each of `changed`, `only_in_a` and `only_in_b`."""
    layout: str = ""
    """The difference in layout, if any. If the layouts differ, rows are not compared."""

    @property
    def is_same(self) -> bool:
        return not (self.changed or self.only_in_a or self.only_in_b or self.layout)


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """The difference between two versions of a dense tensor."""

    name: str
    what: str
    """One of values, shape, only_in_a, only_in_b."""
    max_difference: float | None = None
    """The largest |a - b|, given only if the shapes are equal."""


@dataclass(frozen=True, slots=True)
class CheckpointDiff:
    """The differences between two checkpoints."""

    step_a: int
    step_b: int
    tables: tuple[TableDiff, ...]
    """All tables. If a table is in only one checkpoint, all its rows count as `only_in_a` or
    `only_in_b`.
    """
    dense: tuple[TensorDiff, ...]
    """The tensors that differ."""

    @property
    def is_same(self) -> bool:
        """Return whether all rows and tensors are equal; the step may differ."""
        return not self.dense and all(table.is_same for table in self.tables)

    def to_json(self) -> dict[str, Any]:
        return {"is_same": self.is_same, **asdict(self)}


def diff(a: Checkpoint, b: Checkpoint, *, max_keys: int = 10) -> CheckpointDiff:
    """Compare all rows and tensors bitwise, with deltas merged.

    Lists up to `max_keys` sample keys for each kind of difference. Uses 24 bytes of memory per row
    of `a`, for at most 8 million rows at a time; larger tables are read in parts.
    """
    tables_a = {table.name: table for table in a.manifest.tables}
    tables_b = {table.name: table for table in b.manifest.tables}
    names = [*tables_a, *(name for name in tables_b if name not in tables_a)]
    return CheckpointDiff(
        a.manifest.step,
        b.manifest.step,
        tuple(
            _diff_table(name, (a, tables_a.get(name)), (b, tables_b.get(name)), max_keys)
            for name in names
        ),
        tuple(_diff_dense(a.dense(), b.dense())),
    )


Side = tuple[Checkpoint, "TableEntry | None"]


class _Digests(NamedTuple):
    """Hashes of a table's rows, sorted by key."""

    keys: NDArray[np.uint64]
    values: NDArray[np.uint64]
    rest: NDArray[np.uint64]


class _Tally:
    """Counts the rows for each kind of difference and keeps a few of their keys."""

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self.counts = dict.fromkeys(("changed", "only_in_a", "only_in_b"), 0)
        self.keys: dict[str, list[int]] = {kind: [] for kind in self.counts}
        self.same = self.values_changed = 0

    def add(self, kind: str, keys: NDArray[np.uint64]) -> None:
        self.counts[kind] += len(keys)
        room = self._max_keys - len(self.keys[kind])
        self.keys[kind] += keys[: max(room, 0)].tolist()


def _diff_table(name: str, a: Side, b: Side, max_keys: int) -> TableDiff:
    tally = _Tally(max_keys)
    layout = _layout_difference(a[1], b[1])
    if not layout:
        entries = (entry for link in a[0].chain for entry in link.manifest.tables)
        num_rows = sum(entry.num_rows for entry in entries if entry.name == name)
        num_parts = 1 + num_rows // _PART_ROWS
        for part in range(num_parts):
            _diff_part(name, a, b, (part, num_parts), tally)
    return TableDiff(
        name=name,
        same=tally.same,
        values_changed=tally.values_changed,
        keys=tally.keys,
        layout=layout,
        **tally.counts,
    )


def _layout_difference(a: TableEntry | None, b: TableEntry | None) -> str:
    if a is None or b is None:
        return ""
    for what, left, right in (
        ("width", a.dim, b.dim),
        ("state", a.state_width, b.state_width),
        ("counters", a.counters, b.counters),
    ):
        if left != right:
            return f"{what}: {left} and {right}"
    return ""


def _rows(side: Side, name: str, shard: tuple[int, int]) -> Iterator[RowChunk]:
    return side[0].rows(name, shard=shard) if side[1] is not None else iter(())


def _diff_part(name: str, a: Side, b: Side, shard: tuple[int, int], tally: _Tally) -> None:
    known = _digests(_rows(a, name, shard))
    found = np.zeros(len(known.keys), bool)
    for chunk in _rows(b, name, shard):
        places, is_known = find_in(known.keys, chunk.keys)
        tally.add("only_in_b", chunk.keys[~is_known])
        places, both = places[is_known], chunk.only(is_known)
        found[places] = True
        values = known.values[places] != _digest(both.values)
        rest = known.rest[places] != _rest_digest(both)
        tally.add("changed", both.keys[values | rest])
        tally.values_changed += int(values.sum())
        tally.same += int((~(values | rest)).sum())
    tally.add("only_in_a", known.keys[~found])


def _digests(chunks: Iterator[RowChunk]) -> _Digests:
    parts: Sequence[tuple[NDArray[np.uint64], ...]] = [
        (chunk.keys.copy(), _digest(chunk.values), _rest_digest(chunk)) for chunk in chunks
    ]
    if not parts:
        return _Digests(*(np.empty(0, np.uint64) for _ in range(3)))
    keys, values, rest = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(keys)
    return _Digests(keys[order], values[order], rest[order])


def _rest_digest(chunk: RowChunk) -> NDArray[np.uint64]:
    digest: NDArray[np.uint64] = _digest(chunk.state) * np.uint64(3) + _digest(chunk.counters)
    return digest


def _digest(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row, uint64[N]; two rows collide with probability 2^-64."""
    words: NDArray[np.uint32] = np.ascontiguousarray(rows).view(np.uint32)
    total = np.zeros(len(rows), np.uint64)
    for column in range(words.shape[1]):
        # The last steps of SplitMix64, applied to the word and its position.
        x = words[:, column].astype(np.uint64) + np.uint64((column + 1) << 32)
        x *= np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        total += x ^ (x >> np.uint64(31))
    return total


def _diff_dense(a: dict[str, NDArray[Any]], b: dict[str, NDArray[Any]]) -> Iterator[TensorDiff]:
    for name, left in a.items():
        right = b.get(name)
        if right is None:
            yield TensorDiff(name, "only_in_a")
        elif left.shape != right.shape or left.dtype != right.dtype:
            yield TensorDiff(name, "shape")
        elif left.tobytes() != right.tobytes():
            gap = np.abs(left.astype(np.float64) - right.astype(np.float64))
            yield TensorDiff(name, "values", float(gap.max()))
    yield from (TensorDiff(name, "only_in_b") for name in b if name not in a)
