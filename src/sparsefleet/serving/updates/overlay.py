"""The changes from many updates, layered over an export's rows.

In shapes, U is the number of requested keys, N the number of rows, D the row width.

Organized like a log-structured merge tree: sorted runs, newest last, each at least twice as large
as the next. An update adds a run and merges runs of similar size, so that applying n rows costs
about n log N and a lookup searches log N runs. Everything is immutable: the holder of an overlay
keeps seeing one snapshot while newer ones are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsefleet.serving.export.quantization import EncodedRows, decode_rows
from sparsefleet.serving.updates.update import TableChanges
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["Overlay", "TableOverlay"]

_GROWTH = 2


class _Run(NamedTuple):
    """Sorted changes with distinct keys."""

    keys: Keys
    present: NDArray[np.bool_]
    """False if the row was removed; its values are then meaningless."""
    rows: EncodedRows


class TableOverlay:
    """Changes to one table since the export.

    >>> keys, gone = np.array([3, 5], np.uint64), np.array([7], np.uint64)
    >>> rows = EncodedRows(np.array([[1.0], [2.0]], np.float32), None)
    >>> overlay = TableOverlay().after(TableChanges(keys, rows, gone))
    >>> out, known = np.zeros((3, 1), np.float32), np.array([False, False, True])
    >>> overlay.find(np.array([5, 6, 7], np.uint64), out, known)
    array([ True, False,  True])
    >>> out.ravel(), known
    (array([2., 0., 0.], dtype=float32), array([ True, False, False]))
    """

    def __init__(self, runs: tuple[_Run, ...] = ()) -> None:
        self._runs = runs

    def __len__(self) -> int:
        """Return the number of rows and removed keys in all runs, including replaced ones."""
        return sum(len(run.keys) for run in self._runs)

    @property
    def memory_bytes(self) -> int:
        return sum(
            part.nbytes
            for run in self._runs
            for part in (run.keys, run.present, run.rows.values, run.rows.scales)
            if part is not None
        )

    def after(self, changes: TableChanges) -> TableOverlay:
        """Return this overlay with newer changes on top."""
        run = _run_of(changes)
        if not len(run.keys):
            return self
        runs = [*self._runs, run]
        while len(runs) > 1 and len(runs[-2].keys) < _GROWTH * len(runs[-1].keys):
            newer = runs.pop()
            runs[-1] = _merged(runs[-1], newer)
        return TableOverlay(tuple(runs))

    def find(self, keys: Keys, rows: Floats, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Set `rows`, float32[U, D], and `known`, bool[U], for changed keys; return their mask."""
        changed = np.zeros(len(keys), np.bool_)
        for run in reversed(self._runs):
            asked = np.flatnonzero(~changed)
            if not len(asked):
                break
            places = np.minimum(np.searchsorted(run.keys, keys[asked]), len(run.keys) - 1)
            hits = run.keys[places] == keys[asked]
            asked, places = asked[hits], places[hits]
            present = run.present[places]
            rows[asked] = np.where(present[:, None], decode_rows(run.rows.take(places)), 0.0)
            known[asked] = present
            changed[asked] = True
        return changed

    def changes(self) -> TableChanges:
        """Return all changes as a single update."""
        if not self._runs:
            raise ValueError("an overlay without changes has no width")
        whole = self._runs[0]
        for run in self._runs[1:]:
            whole = _merged(whole, run)
        rows = whole.rows.take(np.flatnonzero(whole.present))
        return TableChanges(whole.keys[whole.present], rows, whole.keys[~whole.present])


class Overlay:
    """Changes to all tables since the export, with the dense parameters of the same snapshot."""

    def __init__(self, tables: Mapping[str, TableOverlay] | None = None) -> None:
        self.tables: Mapping[str, TableOverlay] = tables or {}

    def after(self, tables: Mapping[str, TableChanges]) -> Overlay:
        """Return this overlay with newer changes on top."""
        merged = dict(self.tables)
        for name, changes in tables.items():
            merged[name] = merged.get(name, TableOverlay()).after(changes)
        return Overlay(merged)

    def table(self, name: str) -> TableOverlay:
        return self.tables.get(name, TableOverlay())

    def changes(self) -> dict[str, TableChanges]:
        """Return all changes as a single update, omitting unchanged tables."""
        return {name: table.changes() for name, table in self.tables.items() if len(table)}

    @property
    def memory_bytes(self) -> int:
        return sum(table.memory_bytes for table in self.tables.values())


def _run_of(changes: TableChanges) -> _Run:
    keys = np.concatenate([changes.keys, changes.removed])
    present = np.arange(len(keys)) < len(changes.keys)
    order = np.argsort(keys, kind="stable")
    nothing = np.zeros((len(changes.removed), changes.rows.values.shape[1]))
    values = np.concatenate([changes.rows.values, nothing.astype(changes.rows.values.dtype)])
    scales = changes.rows.scales
    if scales is not None:
        scales = np.concatenate([scales, nothing[:, 0].astype(np.float32)])
    return _Run(keys[order], present[order], EncodedRows(values, scales).take(order))


def _merged(older: _Run, newer: _Run) -> _Run:
    """Merge two runs. For a key in both, the newer run wins."""
    stays = ~np.isin(older.keys, newer.keys, assume_unique=True)
    keys = np.concatenate([older.keys[stays], newer.keys])
    order = np.argsort(keys, kind="stable")

    def both(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
        joined: NDArray[Any] = np.concatenate([one[stays], other])[order]
        return joined

    scales: Floats | None = None
    if older.rows.scales is not None and newer.rows.scales is not None:
        scales = both(older.rows.scales, newer.rows.scales)
    rows = EncodedRows(both(older.rows.values, newer.rows.values), scales)
    return _Run(keys[order], both(older.present, newer.present), rows)
