"""One load of one server: everything that will be read is checked before a row changes.

Letters: N elements of a dense table that are here, S arrays of optimizer state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.errors import CheckpointMismatchError
from sparsefleet.server.background_job import BackgroundJob

__all__ = ["DenseSource", "TableLoad"]

_LEASE_S = 60.0
_END_S = 30.0
_CALL_S = 3600.0  # for one call of a store in this process

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseSource:
    """The tensors that make up a dense table, one after another, and its state."""

    table: str
    values: Sequence[str]
    """Names of tensors."""
    state: Sequence[Sequence[str]]
    """For each of the S arrays of state, names of tensors; none: state begins anew."""


class TableLoad:
    """Checks, then replaces, this server's part of tables by that of a checkpoint.

    shard: this server's place and the number of servers.
    counters: the sparse tables, and for each the counters that its rows keep here.
    """

    def __init__(
        self,
        tables: _core.Store,
        shard: tuple[int, int],
        checkpoint: Checkpoint,
        *,
        counters: Mapping[str, Sequence[str]],
        dense: Sequence[DenseSource],
    ) -> None:
        self._tables = tables
        self._shard = shard
        self._checkpoint = checkpoint
        self._counters = counters
        self._dense = dense
        self._tensors: dict[str, NDArray[Any]] = {}
        self._job = self._start("check", self._check)

    @property
    def is_over(self) -> bool:
        """Whether it was ended or given up."""
        return self._job.is_over

    def apply(self) -> None:
        """Begins to change rows. REQUIRES: the check has ended well, on all servers."""
        self._job.end(_END_S)
        self._job = self._start("load", self._load)

    def wait(self, timeout_s: float) -> dict[str, Any] | None:
        """What was done, or None if it takes longer; raises what went wrong."""
        return self._job.wait(timeout_s)

    def end(self) -> None:
        """Nobody waits for it any more."""
        self._job.end(_END_S)
        self._tensors = {}

    def _start(self, what: str, work: Any) -> BackgroundJob:
        name = f"{what} of {self._checkpoint.path}"
        return BackgroundJob(name, work, lease_s=_LEASE_S, clean_up=lambda: None)

    def _check(self, job: BackgroundJob) -> dict[str, Any]:
        for table in self._counters:
            for _ in self._checkpoint.rows(table, shard=self._shard, columns=()):
                job.check()
        if self._dense:
            self._tensors = self._checkpoint.dense()
            for source in self._dense:
                self._check_dense(source)
        return {}

    def _check_dense(self, source: DenseSource) -> None:
        names = [*source.values, *(name for array in source.state for name in array)]
        for name in names:
            if name not in self._tensors:
                raise CheckpointMismatchError(
                    f"{self._checkpoint.path}: expected tensor '{name}', found none of that name"
                )
        size = int(self._tables.info(source.table, _CALL_S).size)
        found = sum(self._tensors[name].size for name in source.values)
        if found < size:
            raise CheckpointMismatchError(
                f"{self._checkpoint.path}: dense table '{source.table}': expected {size} elements, "
                f"found {found}"
            )

    def _load(self, job: BackgroundJob) -> dict[str, Any]:
        rows = {}
        for table, counters in self._counters.items():
            self._tables.clear(table)
            rows[table] = self._load_rows(job, table, counters)
        for source in self._dense:
            self._load_dense(source)
        return {"rows": rows}

    def _load_rows(self, job: BackgroundJob, table: str, counters: Sequence[str]) -> int:
        saved = self._checkpoint.manifest.table(table).counters
        count = 0
        for chunk in self._checkpoint.rows(table, shard=self._shard):
            job.check()
            kept = _chosen(chunk.counters, saved, counters)
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

    def _load_dense(self, source: DenseSource) -> None:
        here = self._tables.read_dense_part(source.table)
        begin, end = here.begin, here.begin + len(here.values)
        if begin == end:
            return
        values = self._joined(source.values, begin, end)
        state = None
        if source.state:
            state = np.stack([self._joined(names, begin, end) for names in source.state])
        self._tables.write_dense_part(source.table, begin, values, state)

    def _joined(self, names: Sequence[str], begin: int, end: int) -> Floats:
        """Elements begin..end of the tensors, one after another."""
        out = np.empty(end - begin, np.float32)
        at = 0
        for name in names:
            flat = self._tensors[name].reshape(-1)
            first, last = max(begin - at, 0), min(end - at, len(flat))
            if first < last:
                out[at + first - begin : at + last - begin] = flat[first:last]
            at += len(flat)
        return out


def _chosen(
    found: NDArray[np.uint32], saved: Sequence[str], wanted: Sequence[str]
) -> NDArray[np.uint32]:
    """The counters that a table keeps, of those that were saved.

    Where it was not saved when rows were last touched, none are taken over: rows then count as
    touched now. A count that was not saved is 0.
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
