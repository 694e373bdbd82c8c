"""A running service, seen through its HTTP interface.

Letters: N keys, D row width.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparsefleet.errors import CheckpointError, FeedError, ProtocolError
from sparsefleet.export.feeds import Arrays
from sparsefleet.export.layer_trace import Layer
from sparsefleet.export.manifest import Manifest
from sparsefleet.export.schema import InputSchema, Schema
from sparsefleet.store.arrays import Keys
from sparsefleet.verify.examples import rows_of
from sparsefleet.verify.export_side import checksums_of, formats_of
from sparsefleet.verify.offline_model import OfflineModel
from sparsefleet.verify.service_client import ServiceClient
from sparsefleet.verify.side import FoundRows, Side, TableFacts, Trace

__all__ = ["ServiceSide"]

_AT_ONCE = 5_000
"""Keys or examples of one request, if the service does not say that it takes fewer."""


class ServiceSide(Side):
    """What a service says of itself, its rows and its predictions.

    model: the export under test, whose names of layers and inputs are used.
    """

    def __init__(self, client: ServiceClient, model: OfflineModel) -> None:
        super().__init__(client.url)
        self._client = client
        self._model = model

    @cached_property
    def _about(self) -> dict[str, Any]:
        return self._client.get("/v1/model")

    @cached_property
    def _manifest(self) -> Manifest:
        try:
            return Manifest.from_json(json.dumps(self._about["manifest"]), self.name)
        except (KeyError, CheckpointError) as error:
            raise ProtocolError(f"{self.name}/v1/model has no manifest: {error}") from error

    @property
    def _at_once(self) -> int:
        told = self._about.get("settings", {}).get("max_examples")
        return min(_AT_ONCE, told) if isinstance(told, int) and told > 0 else _AT_ONCE

    def version(self) -> str:
        return str(self._about.get("version"))

    def updated(self) -> float | None:
        told = self._client.get("/v1/model").get("settings", {}).get("rows_updated")
        return None if told is None else float(told)

    def schema(self) -> Schema:
        return self._manifest.schema

    def settings(self) -> Mapping[str, str]:
        told = dict(self._about.get("settings", {}))
        packages, precision = told.pop("packages", {}), told.pop("precision", {})
        found = {name: str(value) for name, value in told.items() if value is not None}
        found |= {name: str(value) for name, value in packages.items()}
        found |= formats_of(self._manifest)
        return found | {f"rows of table '{name}'": str(kind) for name, kind in precision.items()}

    def checksums(self) -> Mapping[str, str]:
        return checksums_of(self._manifest)

    def tables(self) -> Mapping[str, TableFacts]:
        return {
            entry.name: TableFacts(entry.dim, None, entry.format) for entry in self._manifest.tables
        }

    def fetch(self, table: str, keys: Keys) -> FoundRows:
        parts = [self._fetch(table, part) for part in _parts(keys, self._at_once)]
        values = np.concatenate([values for _, values in parts])
        return FoundRows(keys, np.concatenate([found for found, _ in parts]), values)

    def _fetch(self, table: str, keys: Keys) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        answer = self._client.post_for_table("/v1/rows", {"table": table, "keys": keys.tolist()})
        rows = answer.combine_chunks()
        if rows.num_rows != len(keys) or not {"key", "found", "values"} <= set(rows.column_names):
            raise ProtocolError(
                f"{self.name}/v1/rows answered {rows.num_rows} rows of {rows.column_names} for "
                f"{len(keys)} keys"
            )
        found = rows.column("found").to_numpy().astype(np.bool_)
        flat = _flat(rows.column("values")).to_numpy(zero_copy_only=False)
        return found, flat.astype(np.float32, copy=False).reshape(len(keys), -1)

    def predict(self, arrays: Arrays) -> Arrays:
        """By the binary form; `trace` goes by JSON."""
        inputs = self._model.schema.inputs
        table = pa.table({item.name: _column(item, arrays) for item in inputs})
        starts = range(0, max(table.num_rows, 1), self._at_once)
        slices = [table.slice(start, self._at_once) for start in starts]
        answer = pa.concat_tables(
            self._client.post_for_table("/v1/predict", part).replace_schema_metadata()
            for part in slices
        )
        found = {}
        for target in self._model.schema.targets:
            if target.name not in answer.column_names:
                raise ProtocolError(f"{self.name}/v1/predict answered no target '{target.name}'")
            column = answer.column(target.name).combine_chunks()
            flat = _flat(column).to_numpy(zero_copy_only=False)
            found[target.name] = flat.reshape(len(column), *_tail(flat, len(column), target.shape))
        return found

    def trace(self, arrays: Arrays) -> Trace:
        examples = rows_of(self._model.schema, arrays)
        answer = self._client.post_json("/v1/predict?trace=1", {"examples": examples})
        told = answer.get("trace")
        if not isinstance(told, dict):
            raise ProtocolError(f"{self.name}/v1/predict?trace=1 answered no trace")
        return Trace(self._inputs(told), self._layers(told))

    def _inputs(self, told: dict[str, Any]) -> Arrays:
        """Whole numbers stay such, so that an id that came as a float is seen."""
        wanted = {
            name: item.dtype if index == 0 else "int64"
            for item in self._model.schema.inputs
            for index, name in enumerate(item.arrays)
        }
        found = {}
        for name, values in told.get("inputs", {}).items():
            array = np.array(values)
            kind = np.dtype(wanted.get(name, array.dtype))
            fits = array.dtype.kind == kind.kind or array.size == 0
            found[name] = array.astype(kind) if fits else array
        return found

    def _layers(self, told: dict[str, Any]) -> list[Layer]:
        """Lookups in their order, and layers where the service tells them."""
        names = self._model.lookup_layers
        layers = []
        for layer, lookup in zip(names, told.get("lookups", []), strict=False):
            rows = np.array(lookup["rows"], np.float32)
            values = rows.reshape(*lookup["shape"], rows.shape[-1] if rows.size else layer.dim)
            layers.append(Layer(layer.name, layer.what, values))
        for item in told.get("layers", []):
            array = np.array(item["values"], item["dtype"]).reshape(item["shape"])
            layers.append(Layer(item["name"], item["what"], array))
        return layers

    def takes(self, example: Mapping[str, Any]) -> bool:
        try:
            self._client.post_json("/v1/predict", {"examples": [example]})
        except FeedError:
            return False
        return True


def _parts(keys: Keys, size: int) -> Iterator[Keys]:
    for begin in range(0, max(len(keys), 1), size):
        yield keys[begin : begin + size]


def _column(item: InputSchema, arrays: Arrays) -> pa.Array:
    """One row an example."""
    if not item.is_ragged:
        array = arrays[item.name]
        column = pa.array(array.reshape(-1))
        for size in reversed(array.shape[1:]):
            column = pa.FixedSizeListArray.from_arrays(column, size)
        return column
    values, offsets = (arrays[name] for name in item.arrays)
    ends = offsets if item.is_closed else np.append(offsets, len(values))
    return pa.LargeListArray.from_arrays(pa.array(ends), pa.array(values))


def _flat(column: pa.Array) -> pa.Array:
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    while pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
        column = column.flatten()
    return column


def _tail(flat: NDArray[Any], count: int, shape: tuple[int | str, ...]) -> tuple[int, ...]:
    """The sizes of one example's target; what varies is what is left over."""
    if len(shape) < 2 or not count:
        return tuple(size if isinstance(size, int) else 0 for size in shape[1:])
    known = [size if isinstance(size, int) else -1 for size in shape[1:]]
    return flat.reshape(count, *known).shape[1:]
