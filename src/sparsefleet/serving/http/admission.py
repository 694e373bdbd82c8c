"""Limit the requests in progress and their memory, and read request bodies."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Literal

import anyio
import numpy as np
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect, Request

from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.export.keyed_rows import RowSource, Tables
from sparsefleet.serving.export.manifest import ExportManifest
from sparsefleet.serving.http.config import ServeConfig
from sparsefleet.serving.http.examples import ARROW_STREAM
from sparsefleet.serving.http.refusal import Refusal
from sparsefleet.serving.row_stores.row_store import TablesSnapshot, dense_of
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["Admission", "AdmittedRequest", "RequestMemory", "parse_bytes"]


class Admission:
    """Counts requests and the memory they need. May only be used by the event loop's thread.

    A request counts once its body is complete, so a request that is sent slowly or never finished
    does not use up the limit. Until then, only the bytes received so far count.
    """

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.receiving = 0
        self.requests = 0
        self.bytes = 0
        self.is_draining = False

    @contextlib.contextmanager
    def admit(self) -> Iterator[AdmittedRequest]:
        """Admit one request, or reject it with 429 if too many requests are in progress."""
        self.require_room()
        admitted = AdmittedRequest(self)
        try:
            yield admitted
        finally:
            admitted.free()

    def require_room(self) -> None:
        """Reject the request with 429 if no further request can be admitted."""
        if self.requests >= self.config.max_requests:
            raise Refusal(
                429,
                "queue_full",
                f"{self.requests} requests are in progress, which is the limit; try again later",
                {"Retry-After": "1"},
            )


class AdmittedRequest:
    """One admitted request and the memory counted for it."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._is_counted = False
        self.bytes = 0

    async def read(self, request: Request) -> bytes:
        """Return the body and count the request, enforcing the limits on size and time.

        A body whose Content-Length is too large is rejected before any of it is read.
        """
        admission, config = self._admission, self._admission.config
        declared = request.headers.get("content-length", "")
        self._check_body(int(declared) if declared.isascii() and declared.isdigit() else 0)
        parts: list[bytes] = []
        got = 0
        admission.receiving += 1
        try:
            with anyio.fail_after(config.read_timeout_s):
                async for part in request.stream():
                    got += len(part)
                    self._check_body(got)
                    self._set(got)
                    parts.append(part)
        except TimeoutError:
            raise Refusal(
                408,
                "body_too_slow",
                f"the body was not received within {config.read_timeout_s:g} s",
                {"Connection": "close"},
            ) from None
        except ClientDisconnect:
            raise Refusal(400, "disconnected", "the client disconnected") from None
        finally:
            admission.receiving -= 1
        self.take()
        return b"".join(parts)

    def take(self) -> None:
        """Count the request, at most once; reject it with 429 if there are too many requests."""
        if not self._is_counted:
            self._admission.require_room()
            self._is_counted = True
            self._admission.requests += 1

    def hold(self, size: int) -> None:
        """Count `size` bytes of memory for the request from now on.

        Rejects the request with 413 if it can never fit, and with 429 if it does not fit now.
        """
        most = self._admission.config.max_bytes_under_way
        if size > most:
            raise Refusal(
                413,
                "too_large",
                f"the request needs about {size:,} bytes of memory, and the limit is {most:,}; "
                "send fewer examples at a time, or start the service with a higher "
                "--max-bytes-under-way",
            )
        if size > self.bytes:
            self._check_room(size)
        self._set(size)

    def shrink(self, size: int) -> None:
        """Count at most `size` bytes for the request from now on."""
        self._set(min(size, self.bytes))

    def free(self) -> None:
        """Stop counting the request."""
        self._set(0)
        if self._is_counted:
            self._is_counted = False
            self._admission.requests -= 1

    def _set(self, size: int) -> None:
        self._admission.bytes += size - self.bytes
        self.bytes = size

    def _check_body(self, size: int) -> None:
        config = self._admission.config
        if size > config.max_request_bytes:
            raise Refusal(
                413,
                "too_large",
                f"the body has more than {config.max_request_bytes:,} bytes, which is the limit; "
                "send fewer examples at a time",
                {"Connection": "close"},
            )
        self._check_room(size, {"Connection": "close"})

    def _check_room(self, size: int, headers: dict[str, str] | None = None) -> None:
        admission, most = self._admission, self._admission.config.max_bytes_under_way
        if admission.bytes - self.bytes + size > most:
            raise Refusal(
                429,
                "queue_full",
                f"requests in progress need about {admission.bytes:,} bytes of memory, and the "
                f"limit is {most:,}; try again later",
                {"Retry-After": "1", **(headers or {})},
            )


# Bytes per byte of the body while it is parsed, measured with the worst case of each format:
# nested lists in JSON, a cell of many short numbers in CSV, one-byte integers in Arrow.
_PARSED_JSON, _PARSED_CSV, _PARSED_ARROW = 36, 44, 20

_FLOAT_BYTES = 4
_COPIES_OF_ROWS = 3  # the rows, and two arrays of the same size that the model computes from them
_PER_ID_BYTES = 32  # memory to sort an id and to look it up
_PER_NUMBER_BYTES = 64  # size in a JSON response, as a Python object and as text
_UNKNOWN_SIZE = 8  # assumed for a dimension that varies


def parse_bytes(form: str, size: int) -> int:
    """Return the memory needed to parse a body of `size` bytes, including the body itself."""
    factor = _PARSED_CSV if form == "text/csv" else _PARSED_JSON
    return size * (1 + (_PARSED_ARROW if form == ARROW_STREAM else factor))


class RequestMemory:
    """Memory estimates for requests to one model."""

    def __init__(self, manifest: ExportManifest, max_row_bytes: int) -> None:
        self._max_row_bytes = max_row_bytes
        self._dims = {entry.name: entry.dim for entry in manifest.tables}
        lookups = manifest.schema.lookups
        self._lookups = [(item.ids, self._dims[item.table]) for item in lookups if item.ids]
        self.has_computed_ids = any(item.ids is None for item in lookups)
        """Whether the model computes ids for any lookup, so that they are unknown in advance."""
        self._target_numbers = sum(
            math.prod(size if isinstance(size, int) else _UNKNOWN_SIZE for size in target.shape[1:])
            for target in manifest.schema.targets
        )

    def check_rows(self, arrays: Arrays, most: int | None = None) -> None:
        """Reject with 413 if rows for all ids would exceed `most` bytes or the configured limit."""
        limit = self._max_row_bytes if most is None else min(most, self._max_row_bytes)
        _check_row_bytes(self._row_bytes(arrays), limit)

    def of_rows(self, table: str, count: int) -> int:
        """Return the memory that `count` rows of a table need; reject too many rows with 413."""
        size = count * self._dims[table] * _FLOAT_BYTES
        _check_row_bytes(size, self._max_row_bytes)
        return _COPIES_OF_ROWS * size + count * _PER_ID_BYTES

    def of_prediction(self, arrays: Arrays, examples: int) -> int:
        """Return the memory that a prediction needs for its checked inputs, rows and response."""
        inputs = sum(array.nbytes for array in arrays.values())
        ids = sum(arrays[name].size for name, _ in self._lookups)
        rows = self._row_bytes(arrays) * _COPIES_OF_ROWS
        answer = examples * self._target_numbers * (_FLOAT_BYTES + _PER_NUMBER_BYTES)
        return inputs + ids * _PER_ID_BYTES + rows + answer

    def bound(self, tables: Tables) -> Tables:
        """Return the tables for one prediction.

        If the model computes ids, the tables reject lookups of too many rows with 413.
        """
        if not self.has_computed_ids:
            return tables
        room = _Room(self._max_row_bytes)
        sources = {
            name: _BoundedSource(source, self._dims[name] * _FLOAT_BYTES, room)
            for name, source in tables.items()
        }
        return TablesSnapshot(sources, dense_of(tables))

    def _row_bytes(self, arrays: Arrays) -> int:
        return sum(arrays[name].size * dim * _FLOAT_BYTES for name, dim in self._lookups)


class _Room:
    def __init__(self, size: int) -> None:
        self._most = size
        self._taken = 0

    def take(self, size: int) -> None:
        self._taken += size
        _check_row_bytes(self._taken, self._most)


class _BoundedSource:
    """A row source that checks the size of each lookup first."""

    def __init__(self, source: RowSource, row_bytes: int, room: _Room) -> None:
        self._source = source
        self._row_bytes = row_bytes
        self._room = room

    def look_up(
        self,
        ids: NDArray[np.int64],
        *,
        padding_id: int | None = None,
        unknown: Literal["zeros", "initial"] = "zeros",
    ) -> Floats:
        self._room.take(ids.size * self._row_bytes)
        return self._source.look_up(ids, padding_id=padding_id, unknown=unknown)

    def known(self, keys: Keys) -> NDArray[np.bool_]:
        return self._source.known(keys)


def _check_row_bytes(size: int, most: int) -> None:
    if size > most:
        raise Refusal(
            413,
            "too_many_ids",
            f"the rows of the request's ids are {size:,} bytes (ids x width x 4), more than the "
            f"limit of {most:,}; send fewer examples or ids at a time, or start the service with "
            "a higher --max-row-bytes",
        )
