"""Loads the tables of one server; all data is checked before the first row changes.

In shapes, N is the number of elements of a dense table on this server, S the number of arrays of
optimizer state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.checkpoint.row_chunk import COLUMNS
from sparsefleet.errors import CheckpointMismatchError
from sparsefleet.server.table_save import BackgroundJob

__all__ = ["DenseSource", "LoadPart", "TableLoad"]

_LEASE_S = 60.0
_END_S = 30.0
_CALL_S = 3600.0  # timeout of a call within this process

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseSource:
    """The tensors that are concatenated into a dense table and its state."""

    table: str
    values: Sequence[str]
    """Names of the tensors with the table's values."""
    state: Sequence[Sequence[str]]
    """Names of the tensors for each of the S arrays of state; if empty, the state is reset."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadPart:
    """A checkpoint and the tables to load from it."""

    checkpoint: Checkpoint
    counters: Mapping[str, Sequence[str]]
    """Sparse tables, with the per-row counters that each keeps."""
    dense: Sequence[DenseSource] = ()
    without_state: Collection[str] = ()
    """Sparse tables whose optimizer state is reset because it was saved by a different optimizer.
    """


class TableLoad:
    """Checks all parts, then replaces this server's share of their tables.

    shard: index of this server and the number of servers.
    """

    def __init__(
        self,
        tables: _core.Store,
        shard: tuple[int, int],
        parts: Sequence[LoadPart],
        change_in_bulk: Callable[[Callable[[], None]], None] = lambda change: change(),
    ) -> None:
        self._tables = tables
        self._shard = shard
        self._parts = parts
        self._change_in_bulk = change_in_bulk
        self._tensors: dict[str, dict[str, NDArray[Any]]] = {}  # by path of the checkpoint
        self._job = self._start("check", self._check)

    @property
    def is_over(self) -> bool:
        """Return whether the load is finished or was canceled."""
        return self._job.is_over

    def apply(self) -> None:
        """Start changing rows. REQUIRES: the check has succeeded on all servers."""
        self._job.end(_END_S)
        self._job = self._start("load", self._load)

    def wait(self, timeout_s: float) -> dict[str, Any] | None:
        """Wait for the check or, after `apply`, the load; return None if the timeout expires first.

        A load returns {"rows": number of rows by table}, a check {}. Raises the error if it failed.
        """
        return self._job.wait(timeout_s)

    def end(self) -> None:
        """Cancel the load because its client no longer waits for it."""
        self._job.end(_END_S)
        self._tensors = {}

    def _start(self, what: str, work: Any) -> BackgroundJob:
        name = f"{what} from {', '.join(part.checkpoint.path for part in self._parts)}"
        return BackgroundJob(name, work, lease_s=_LEASE_S, clean_up=lambda: None)

    def _check(self, job: BackgroundJob) -> dict[str, Any]:
        for part in self._parts:
            for table in part.counters:
                for _ in part.checkpoint.rows(table, shard=self._shard, columns=()):
                    job.check()
            if part.dense:
                tensors = self._tensors[part.checkpoint.path] = part.checkpoint.dense()
                for source in part.dense:
                    self._check_dense(part.checkpoint.path, tensors, source)
        return {}

    def _check_dense(
        self, path: str, tensors: Mapping[str, NDArray[Any]], source: DenseSource
    ) -> None:
        names = [*source.values, *(name for array in source.state for name in array)]
        for name in names:
            if name not in tensors:
                raise CheckpointMismatchError(f"{path}: no tensor named '{name}'")
        size = int(self._tables.info(source.table, _CALL_S).size)
        found = sum(tensors[name].size for name in source.values)
        if found < size:
            raise CheckpointMismatchError(
                f"{path}: dense table '{source.table}': expected {size} elements, found {found}"
            )

    def _load(self, job: BackgroundJob) -> dict[str, Any]:
        rows: dict[str, int] = {}
        self._change_in_bulk(lambda: self._load_all(job, rows))
        return {"rows": rows}

    def _load_all(self, job: BackgroundJob, rows: dict[str, int]) -> None:
        for part in self._parts:
            for table in part.counters:
                self._tables.clear(table)
                rows[table] = self._load_rows(job, part, table)
            for source in part.dense:
                self._load_dense(self._tensors[part.checkpoint.path], source)

    def _load_rows(self, job: BackgroundJob, part: LoadPart, table: str) -> int:
        saved = part.checkpoint.manifest.table(table).counters
        columns = [name for name in COLUMNS if name != "state" or table not in part.without_state]
        count = 0
        for chunk in part.checkpoint.rows(table, shard=self._shard, columns=columns):
            job.check()
            kept = _chosen(chunk.counters, saved, part.counters[table])
            self._tables.import_rows(
                table,
                chunk.keys,
                np.ascontiguousarray(chunk.values).reshape(-1),
                np.ascontiguousarray(chunk.state).reshape(-1),
                kept.reshape(-1),
                _CALL_S,
            )
            count += len(chunk.keys)
        return count

    def _load_dense(self, tensors: Mapping[str, NDArray[Any]], source: DenseSource) -> None:
        here = self._tables.read_dense_part(source.table)
        begin, end = here.begin, here.begin + len(here.values)
        if begin == end:
            return
        values = _joined(tensors, source.values, begin, end)
        state = None
        if source.state:
            state = np.stack([_joined(tensors, names, begin, end) for names in source.state])
        self._tables.write_dense_part(source.table, begin, values, state)


def _joined(
    tensors: Mapping[str, NDArray[Any]], names: Sequence[str], begin: int, end: int
) -> Floats:
    """Return elements begin..end of the concatenated tensors."""
    out = np.empty(end - begin, np.float32)
    at = 0
    for name in names:
        flat = tensors[name].reshape(-1)
        first, last = max(begin - at, 0), min(end - at, len(flat))
        if first < last:
            out[at + first - begin : at + last - begin] = flat[first:last]
        at += len(flat)
    return out


def _chosen(
    found: NDArray[np.uint32], saved: Sequence[str], wanted: Sequence[str]
) -> NDArray[np.uint32]:
    """Return the saved counters that the table keeps.

    If the step or time of the last push was not saved, no counters are loaded, and rows are treated
    as just pushed. A count that was not saved is 0.
    """
    if tuple(saved) == tuple(wanted):
        return np.ascontiguousarray(found)
    if any(name not in saved for name in wanted if name != "count"):
        return np.empty((len(found), 0), np.uint32)
    chosen = np.zeros((len(found), len(wanted)), np.uint32)
    for column, name in enumerate(wanted):
        if name in saved:
            chosen[:, column] = found[:, list(saved).index(name)]
    return chosen
