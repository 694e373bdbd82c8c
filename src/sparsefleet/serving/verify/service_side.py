"""A running service, accessed through its HTTP API.

In shapes, N is the number of keys, D the row width.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparsefleet.errors import (
    AuthError,
    CheckpointError,
    DeadlineError,
    FeedError,
    PeerLostError,
    ProtocolError,
)
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.export.manifest import ExportManifest, InputSchema, Schema
from sparsefleet.serving.export.torch_engine import Layer
from sparsefleet.serving.verify.case import OfflineModel, rows_of
from sparsefleet.serving.verify.side import FoundRows, Side, TableFacts, Trace
from sparsefleet.serving.verify.sides import checksums_of, formats_of
from sparsefleet.store.arrays import Keys

__all__ = ["ServiceClient", "ServiceSide"]

_ARROW = "application/vnd.apache.arrow.stream"
_JSON = "application/json"
_LATER = (429, 503, 504)
"""Statuses worth retrying, because the service is busy or still loading."""
_PAUSE_S = 0.25


class ServiceClient:
    """An HTTP client for one service.

    Raises RpcError if the service does not answer and FeedError if it rejects the request.

    timeout_s: limit for one call, including retries.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s

    def get(self, path: str) -> dict[str, Any]:
        return self._object(path, self._ask(path, None, _JSON))

    def post_json(self, path: str, content: Any) -> dict[str, Any]:
        try:
            body = json.dumps(content, allow_nan=False).encode()
        except ValueError as error:
            raise FeedError(f"NaN and infinity cannot be sent as JSON: {error}") from error
        return self._object(path, self._ask(path, body, _JSON))

    def post_for_table(self, path: str, content: Any) -> pa.Table:
        """Send JSON or a table and return the table in the response."""
        if isinstance(content, pa.Table):
            return self._table(path, self._ask(path, _stream(content), _ARROW))
        return self._table(path, self._ask(path, json.dumps(content).encode(), _JSON))

    def _ask(self, path: str, body: bytes | None, form: str) -> bytes:
        headers = {} if body is None else {"Content-Type": form}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self.url + path, body, headers)
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._exchange(path, request, deadline)
            except urllib.error.HTTPError as error:
                with error:
                    text = _described(error.read())
                if error.code not in _LATER or time.monotonic() + _PAUSE_S > deadline:
                    raise self._refused(path, error.code, text) from None
                time.sleep(_PAUSE_S)

    def _exchange(self, path: str, request: urllib.request.Request, deadline: float) -> bytes:
        left_s = max(deadline - time.monotonic(), 0.001)
        try:
            with urllib.request.urlopen(request, timeout=left_s) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError:
            raise
        except TimeoutError as error:
            raise self._late(path) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._late(path) from error
            raise PeerLostError(f"{self.url} cannot be reached: {error.reason}") from error
        except OSError as error:
            raise PeerLostError(f"{self.url}{path}: connection lost: {error}") from error

    def _late(self, path: str) -> DeadlineError:
        return DeadlineError(f"{self.url}{path} did not answer within {self._timeout_s:g} s")

    def _refused(self, path: str, status: int, text: str) -> Exception:
        message = f"{self.url}{path} answered {status}: {text}"
        if status == 401:
            return AuthError(f"{message}; pass the service's token")
        if status in (400, 413, 422):
            return FeedError(message)
        return PeerLostError(message) if status >= 500 else ProtocolError(message)

    def _object(self, path: str, raw: bytes) -> dict[str, Any]:
        try:
            content = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"{self.url}{path} did not return JSON: {error}") from error
        if not isinstance(content, dict):
            kind = type(content).__name__
            raise ProtocolError(f"{self.url}{path} returned a JSON {kind}, expected an object")
        return content

    def _table(self, path: str, raw: bytes) -> pa.Table:
        try:
            with pa.ipc.open_stream(pa.py_buffer(raw)) as reader:
                return reader.read_all()
        except (pa.ArrowException, OSError) as error:
            raise ProtocolError(f"{self.url}{path} did not return Arrow: {error}") from error


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    raw: bytes = sink.getvalue().to_pybytes()
    return raw


def _described(raw: bytes) -> str:
    try:
        return str(json.loads(raw)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return raw[:200].decode("utf-8", "replace")


_AT_ONCE = 5_000
"""Keys or examples per request, unless the service reports a lower limit."""


class ServiceSide(Side):
    """A service with its settings, rows and predictions.

    model: the export under test, which provides the names of layers and inputs.
    """

    def __init__(self, client: ServiceClient, model: OfflineModel) -> None:
        super().__init__(client.url)
        self._client = client
        self._model = model

    @cached_property
    def _about(self) -> dict[str, Any]:
        return self._client.get("/v1/model")

    @cached_property
    def _manifest(self) -> ExportManifest:
        try:
            return ExportManifest.from_json(json.dumps(self._about["manifest"]), self.name)
        except (KeyError, CheckpointError) as error:
            raise ProtocolError(f"{self.name}/v1/model has no manifest: {error}") from error

    @property
    def _at_once(self) -> int:
        reported = self._about.get("settings", {}).get("max_examples")
        return min(_AT_ONCE, reported) if isinstance(reported, int) and reported > 0 else _AT_ONCE

    def version(self) -> str:
        return str(self._about.get("version"))

    def updated(self) -> float | None:
        reported = self._client.get("/v1/model").get("settings", {}).get("rows_updated")
        return None if reported is None else float(reported)

    def schema(self) -> Schema:
        return self._manifest.schema

    def settings(self) -> Mapping[str, str]:
        reported = dict(self._about.get("settings", {}))
        packages, precision = reported.pop("packages", {}), reported.pop("precision", {})
        found = {name: str(value) for name, value in reported.items() if value is not None}
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
                f"{self.name}/v1/rows returned {rows.num_rows} rows with columns "
                f"{rows.column_names}, expected key, found and values for {len(keys)} keys"
            )
        found = rows.column("found").to_numpy().astype(np.bool_)
        flat = _flat(rows.column("values")).to_numpy(zero_copy_only=False)
        return found, flat.astype(np.float32, copy=False).reshape(len(keys), -1)

    def predict(self, arrays: Arrays) -> Arrays:
        """Request predictions in Arrow format; `trace` uses JSON."""
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
                raise ProtocolError(f"{self.name}/v1/predict returned no target '{target.name}'")
            column = answer.column(target.name).combine_chunks()
            flat = _flat(column).to_numpy(zero_copy_only=False)
            found[target.name] = flat.reshape(len(column), *_tail(flat, len(column), target.shape))
        return found

    def trace(self, arrays: Arrays) -> Trace:
        examples = rows_of(self._model.schema, arrays)
        answer = self._client.post_json("/v1/predict?trace=1", {"examples": examples})
        reported = answer.get("trace")
        if not isinstance(reported, dict):
            raise ProtocolError(f"{self.name}/v1/predict?trace=1 returned no trace")
        return Trace(self._inputs(reported), self._layers(reported))

    def _inputs(self, reported: dict[str, Any]) -> Arrays:
        """Return the reported inputs. Ids received as floats stay floats, so that checks can report
        them.
        """
        wanted = {
            name: item.dtype if index == 0 else "int64"
            for item in self._model.schema.inputs
            for index, name in enumerate(item.arrays)
        }
        found = {}
        for name, values in reported.get("inputs", {}).items():
            array = np.array(values)
            kind = np.dtype(wanted.get(name, array.dtype))
            fits = array.dtype.kind == kind.kind or array.size == 0
            found[name] = array.astype(kind) if fits else array
        return found

    def _layers(self, reported: dict[str, Any]) -> list[Layer]:
        """Return the lookups in order, then the layers that the service reports."""
        names = self._model.lookup_layers
        layers = []
        for layer, lookup in zip(names, reported.get("lookups", []), strict=False):
            rows = np.array(lookup["rows"], np.float32)
            values = rows.reshape(*lookup["shape"], rows.shape[-1] if rows.size else layer.dim)
            layers.append(Layer(layer.name, layer.what, values))
        for item in reported.get("layers", []):
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
    """Return a column with one row per example."""
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
    """Return the shape of one example's target, with the varying size computed."""
    if len(shape) < 2 or not count:
        return tuple(size if isinstance(size, int) else 0 for size in shape[1:])
    known = [size if isinstance(size, int) else -1 for size in shape[1:]]
    return flat.reshape(count, *known).shape[1:]
