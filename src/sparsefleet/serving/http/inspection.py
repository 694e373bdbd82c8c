"""Details of a prediction: ids without a row, lookups and layers.

In shapes, B is the number of examples.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import SparseFleetError
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.export.keyed_rows import RowSource, Tables
from sparsefleet.serving.export.manifest import Schema
from sparsefleet.serving.http.admission import RequestMemory
from sparsefleet.serving.http.batcher import BatchLayout
from sparsefleet.serving.predictor import Predictor
from sparsefleet.serving.row_stores.row_store import TablesSnapshot, dense_of
from sparsefleet.store.arrays import Floats, Keys

if TYPE_CHECKING:
    from sparsefleet.serving.export.torch_engine import TorchEngine

__all__ = ["Inspected", "inspect", "trace"]

_MOST_KEYS = 1000


class RecordedLookup(NamedTuple):
    """One lookup that a prediction made."""

    table: str
    ids: NDArray[np.int64]
    padding_id: int | None
    rows: Floats

    def as_json(self) -> dict[str, Any]:
        """Return the table, the ids and the rows with their checksum."""
        return {
            "table": self.table,
            "shape": list(self.ids.shape),
            "keys": [str(key) for key in self.ids.reshape(-1).view(np.uint64).tolist()],
            "rows": self.rows.reshape(-1, self.rows.shape[-1]).tolist(),
            "sha256": hashlib.sha256(np.ascontiguousarray(self.rows).tobytes()).hexdigest(),
        }


class Inspected(NamedTuple):
    """A prediction with its lookups."""

    targets: Arrays
    unknown: list[dict[str, Any]]
    """The keys without a row. Each entry contains the table, the key (as text, since JavaScript
    would round it), the input and the examples that contain the key. Input and examples are null
    if the model computed the key.
    """
    lookups: list[RecordedLookup]


class _RecordingSource:
    """Records the lookups in a table."""

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
    """Predict from checked inputs with one snapshot of the rows, and record the lookups."""
    notes: list[RecordedLookup] = []
    recording = {name: _RecordingSource(name, source, notes) for name, source in tables.items()}
    targets = predictor.predict_with(arrays, TablesSnapshot(recording, dense_of(tables)))
    unknown = list(islice(_unknown(predictor.schema, arrays, tables, notes), _MOST_KEYS))
    return Inspected(targets, unknown, notes)


def _unknown(
    schema: Schema, arrays: Arrays, tables: Tables, notes: list[RecordedLookup]
) -> Iterator[dict[str, Any]]:
    listed: set[tuple[str, int]] = set()
    for lookup in schema.lookups:
        if lookup.ids is None:
            continue
        ids = arrays[lookup.ids]
        owners = _owners(schema, arrays, lookup.ids)
        missing = _missing(tables[lookup.table], ids, lookup.padding_id)
        for key, places in _by_key(ids.reshape(-1).view(np.uint64), missing):
            listed.add((lookup.table, key))
            yield {
                "table": lookup.table,
                "key": str(key),
                "input": lookup.ids.removesuffix(".values"),
                "examples": sorted(set(owners[places].tolist())),
            }
    for note in notes:  # ids that the model computed
        missing = _missing(tables[note.table], note.ids, note.padding_id)
        for key, _ in _by_key(note.ids.reshape(-1).view(np.uint64), missing):
            if (note.table, key) not in listed:
                listed.add((note.table, key))
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
    """Yield each distinct key where `wanted` is true, in ascending order, with its positions."""
    places = np.flatnonzero(wanted)
    places = places[np.argsort(keys[places], kind="stable")]
    found, begins = np.unique(keys[places], return_index=True)
    bounds = np.append(begins, len(places))
    for key, begin, end in zip(found.tolist(), bounds[:-1], bounds[1:], strict=True):
        yield key, places[begin:end]


def _owners(schema: Schema, arrays: Mapping[str, NDArray[Any]], name: str) -> NDArray[np.int64]:
    """Return the index of the example that each of the n ids of an input belongs to: int64[n]."""
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


_MOST_EXAMPLES = 8
_MOST_ROW_BYTES = 1 << 20  # the response contains every number as text


def trace(
    predictor: Predictor, layout: BatchLayout, memory: RequestMemory, arrays: Arrays, tables: Tables
) -> dict[str, Any]:
    """Return the input arrays, lookups and layer outputs of the first examples.

    Torch runs the graph, even if another engine computes predictions. Rejects the request with 413
    if these examples' rows are too large to return.
    """
    count = min(layout.count(arrays), _MOST_EXAMPLES)
    first = layout.part(arrays, count)
    memory.check_rows(first, _MOST_ROW_BYTES)
    found: dict[str, Any] = {
        "examples": count,
        "inputs": {name: array.tolist() for name, array in first.items()},
        "lookups": [
            each.as_json() for each in inspect(predictor, first, memory.bound(tables)).lookups
        ],
    }
    try:
        found["layers"] = _layers(predictor, first, memory.bound(tables))
    except (SparseFleetError, OSError) as error:  # for example because the export was overwritten
        found["layers_missing"] = str(error)
    return found


def _layers(predictor: Predictor, arrays: Arrays, tables: Tables) -> list[dict[str, Any]]:
    from sparsefleet.serving.export.torch_engine import trace_layers

    engine = _engine(predictor.directory / predictor.manifest.graph, predictor.schema)
    dense = dense_of(tables)
    graph = (engine if dense is None else engine.with_dense(dense.arrays)).graph
    return [
        {
            "name": layer.name,
            "what": layer.what,
            "dtype": str(layer.values.dtype),
            "shape": list(layer.values.shape),
            "values": _finite(layer.values.reshape(-1).tolist()),
        }
        for layer in trace_layers(graph, predictor.schema, arrays, tables)
        if not layer.what.startswith("look_up(")  # already listed under lookups
    ]


@functools.lru_cache(maxsize=2)
def _engine(path: Path, schema: Schema) -> TorchEngine:
    from sparsefleet.serving.export.graph_file import read_graph
    from sparsefleet.serving.export.torch_engine import TorchEngine

    return TorchEngine(read_graph(path), schema)


def _finite(values: list[Any]) -> list[Any]:
    """Replace values that JSON cannot represent with None."""
    return [
        None if isinstance(value, float) and not math.isfinite(value) else value for value in values
    ]
