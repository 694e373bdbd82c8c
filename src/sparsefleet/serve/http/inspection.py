"""A closer look at one prediction: ids without a row, lookups, layers.

Letters: B examples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsefleet.export.feeds import Arrays
from sparsefleet.export.row_source import RowSource, Tables
from sparsefleet.export.schema import Schema
from sparsefleet.serve.moment_tables import MomentTables, dense_of
from sparsefleet.serve.predictor import Predictor
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["Inspected", "inspect"]

_MOST_KEYS = 1000


class RecordedLookup(NamedTuple):
    """One lookup as it happened."""

    table: str
    ids: NDArray[np.int64]
    padding_id: int | None
    rows: Floats

    def as_json(self) -> dict[str, Any]:
        """Table, ids, and the rows found: values and a digest of them."""
        return {
            "table": self.table,
            "shape": list(self.ids.shape),
            "keys": [str(key) for key in self.ids.reshape(-1).view(np.uint64).tolist()],
            "rows": self.rows.reshape(-1, self.rows.shape[-1]).tolist(),
            "sha256": hashlib.sha256(np.ascontiguousarray(self.rows).tobytes()).hexdigest(),
        }


class Inspected(NamedTuple):
    """A prediction with what led to it."""

    targets: Arrays
    unknown: list[dict[str, Any]]
    """Keys without a row: table, key (as text, for it may be too long for JavaScript), input (null
    if the model computed it), and the examples that have it (null likewise)."""
    lookups: list[RecordedLookup]


class _RecordingSource:
    """Notes what is looked up in a table."""

    def __init__(self, table: str, source: RowSource, notes: list[RecordedLookup]) -> None:
        self._table = table
        self._source = source
        self._notes = notes

    def look_up(
        self,
        ids: NDArray[np.int64],
        *,
        padding_id: int | None = None,
        unknown: Literal["zeros", "initial"] = "zeros",
    ) -> Floats:
        rows = self._source.look_up(ids, padding_id=padding_id, unknown=unknown)
        self._notes.append(RecordedLookup(self._table, ids.copy(), padding_id, rows))
        return rows

    def known(self, keys: Keys) -> NDArray[np.bool_]:
        return self._source.known(keys)


def inspect(predictor: Predictor, arrays: Arrays, tables: Tables) -> Inspected:
    """Predicts checked inputs with the rows of one moment, and says what was looked up."""
    notes: list[RecordedLookup] = []
    recording = {name: _RecordingSource(name, source, notes) for name, source in tables.items()}
    targets = predictor.predict_with(arrays, MomentTables(recording, dense_of(tables)))
    unknown = list(islice(_unknown(predictor.schema, arrays, tables, notes), _MOST_KEYS))
    return Inspected(targets, unknown, notes)


def _unknown(
    schema: Schema, arrays: Arrays, tables: Tables, notes: list[RecordedLookup]
) -> Iterator[dict[str, Any]]:
    told: set[tuple[str, int]] = set()
    for lookup in schema.lookups:
        if lookup.ids is None:
            continue
        ids = arrays[lookup.ids]
        owners = _owners(schema, arrays, lookup.ids)
        missing = _missing(tables[lookup.table], ids, lookup.padding_id)
        for key, places in _by_key(ids.reshape(-1).view(np.uint64), missing):
            told.add((lookup.table, key))
            yield {
                "table": lookup.table,
                "key": str(key),
                "input": lookup.ids.removesuffix(".values"),
                "examples": sorted(set(owners[places].tolist())),
            }
    for note in notes:  # of ids that the model computed
        missing = _missing(tables[note.table], note.ids, note.padding_id)
        for key, _ in _by_key(note.ids.reshape(-1).view(np.uint64), missing):
            if (note.table, key) not in told:
                told.add((note.table, key))
                yield {"table": note.table, "key": str(key), "input": None, "examples": None}


def _missing(
    source: RowSource, ids: NDArray[np.int64], padding_id: int | None
) -> NDArray[np.bool_]:
    flat = np.ascontiguousarray(ids).reshape(-1)
    missing: NDArray[np.bool_] = ~source.known(flat.view(np.uint64))
    return missing if padding_id is None else missing & (flat != padding_id)


def _by_key(
    keys: NDArray[np.uint64], wanted: NDArray[np.bool_]
) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Each wanted key, rising, with its places."""
    places = np.flatnonzero(wanted)
    places = places[np.argsort(keys[places], kind="stable")]
    found, begins = np.unique(keys[places], return_index=True)
    bounds = np.append(begins, len(places))
    for key, begin, end in zip(found.tolist(), bounds[:-1], bounds[1:], strict=True):
        yield key, places[begin:end]


def _owners(schema: Schema, arrays: Mapping[str, NDArray[Any]], name: str) -> NDArray[np.int64]:
    """Which example each id of an input belongs to: int64[n]."""
    for item in schema.inputs:
        if name == item.name:
            array = arrays[name]
            return np.repeat(np.arange(len(array)), array[:1].size)
        if item.is_ragged and name == item.arrays[0]:
            offsets = arrays[item.arrays[1]]
            starts = offsets[:-1] if item.is_closed else offsets
            places = np.arange(len(arrays[name]))
            return np.searchsorted(starts, places, side="right") - 1
    raise AssertionError(name)
