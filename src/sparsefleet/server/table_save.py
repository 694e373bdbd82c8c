"""One save of one server: its rows of one moment, written while training goes on.

Letters: N elements of a dense table that are here, S arrays of optimizer state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from sparsefleet import _core
from sparsefleet.checkpoint import RowChunk, RowFileWriter, RowLayout, write_removed_keys
from sparsefleet.checkpoint.folder import open_folder
from sparsefleet.checkpoint.names import marker_file
from sparsefleet.errors import CheckpointError, NotFoundError
from sparsefleet.server.background_job import BackgroundJob

__all__ = ["Destination", "TableSave", "dense_to_bytes"]

_CHUNK_BYTES = 4 << 20
_LEASE_S = 60.0
_LOOK_UP_S = 0.5
_END_S = 30.0


class Destination(NamedTuple):
    """Where a save goes: a checkpoint that somebody else has begun and will commit."""

    path: str
    token: str
    storage_options: Mapping[str, Any]


class TableSave:
    """Opens cuts through all tables at one moment; they are written when somebody says where.

    shard: this server's place and the number of servers.
    layouts: the sparse tables to write.
    """

    def __init__(
        self,
        tables: _core.Store,
        shard: tuple[int, int],
        layouts: Sequence[RowLayout],
        *,
        dense: Sequence[str],
        only_dirty: bool,
        clear_dirty: bool,
    ) -> None:
        self._shard = shard
        self._layouts = layouts
        self._only_dirty = only_dirty
        self._clear_dirty = clear_dirty
        self._orders: SimpleQueue[Destination] = SimpleQueue()
        self._dense: dict[str, _core.DenseCut] = {}
        self._cuts: dict[str, _core.Cut] = {}
        wanted = [*(layout.table for layout in layouts), *dense]
        opened = tables.open_cuts(only_dirty, clear_dirty, commit="explicit", tables=wanted)
        for table, cut in opened.items():
            if isinstance(cut, _core.DenseCut):
                self._dense[table] = cut
            else:
                self._cuts[table] = cut
        self._job = BackgroundJob(
            "a save", self._write, lease_s=_LEASE_S, clean_up=self._drop, gives_way=True
        )

    def write(self, destination: Destination) -> None:
        """Lets the writing begin."""
        self._orders.put(destination)

    @property
    def is_over(self) -> bool:
        """Whether it was ended or given up."""
        return self._job.is_over

    def wait(self, timeout_s: float) -> dict[str, Any] | None:
        """The files of each table, or None if it takes longer; raises what went wrong."""
        return self._job.wait(timeout_s)

    def dense(self, table: str) -> _core.DenseCut:
        """What this server holds of a dense table: begin, values [N] and state [S, N]."""
        self._job.renew()  # fetching may take longer than the rows do
        cut = self._dense.get(table)
        if cut is None:
            raise NotFoundError(f"there is no dense table '{table}' in this save")
        return cut

    def commit(self) -> None:
        """The checkpoint is in force: rows that have not changed since count as saved."""
        if self._clear_dirty:
            for cut in self._cuts.values():
                cut.commit()

    def end(self) -> None:
        """Gives up what is not written yet, and lets go of the cuts."""
        self._job.end(_END_S)

    def _write(self, job: BackgroundJob) -> dict[str, Any]:
        while True:
            job.check()
            with contextlib.suppress(Empty):
                place = self._orders.get(timeout=_LOOK_UP_S)
                break
        if open_folder(place.path, place.storage_options).size(marker_file(place.token)) is None:
            raise CheckpointError(
                f"server {self._shard[0]} does not see the save that was begun in {place.path}: "
                "give a directory that all servers and worker 0 share"
            )
        return {layout.table: self._write_table(job, place, layout) for layout in self._layouts}

    def _write_table(
        self, job: BackgroundJob, place: Destination, layout: RowLayout
    ) -> dict[str, Any]:
        cut = self._cuts[layout.table]
        path, token, options = place
        with RowFileWriter(path, token, layout, *self._shard, storage_options=options) as writer:
            for chunk in _chunks(cut, layout):
                job.check()
                writer.write(chunk)
        removed = []
        if self._only_dirty:
            removed = write_removed_keys(
                path, token, layout.table, self._shard, [cut.removed()], options
            )
        if not self._clear_dirty:  # else it watches which of its rows change until it is committed
            cut.close()
        return {
            "files": [entry.to_json() for entry in writer.close()],
            "removed": [entry.to_json() for entry in removed],
        }

    def _drop(self) -> None:
        for cut in self._cuts.values():
            cut.close()
        self._dense = {}


def _chunks(cut: _core.Cut, layout: RowLayout) -> Iterator[RowChunk]:
    row_bytes = 8 + 4 * (layout.dim + layout.state + layout.counters)
    max_rows = max(1, _CHUNK_BYTES // row_bytes)
    while (chunk := cut.next(max_rows)) is not None:
        yield RowChunk(*chunk)


def dense_to_bytes(cut: _core.DenseCut, first: int, last: int) -> bytes:
    """Some of the elements that a server holds of a dense table, for the wire.

    uint64: the place of the server's first element, its number of elements, n and S of those
    here; float32: values[n], state[S, n]. All little-endian.
    """
    values, state = cut.values[first:last], cut.state[:, first:last]
    head = np.array([cut.begin, len(cut.values), len(values), len(state)], "<u8")
    return b"".join((head.tobytes(), values.tobytes(), np.ascontiguousarray(state).tobytes()))
