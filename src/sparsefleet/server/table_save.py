"""Saves the tables of one server by writing a snapshot while training continues.

In shapes, N is the number of elements of a dense table on this server, S the number of arrays of
optimizer state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from sparsefleet import _core
from sparsefleet.checkpoint import RowChunk
from sparsefleet.checkpoint.folder import Folder
from sparsefleet.checkpoint.names import marker_file
from sparsefleet.checkpoint.row_chunk import RowLayout
from sparsefleet.checkpoint.row_file_writer import RowFileWriter, write_removed_keys
from sparsefleet.errors import CheckpointError, UnknownTableError
from sparsefleet.server.background_job import BackgroundJob

__all__ = ["Destination", "TableSave", "dense_to_bytes"]

_CHUNK_BYTES = 4 << 20
_LEASE_S = 60.0
_LOOK_UP_S = 0.5
_END_S = 30.0


class Destination(NamedTuple):
    """The destination of tables: a checkpoint that the client has started and will commit."""

    folder: Folder
    token: str
    tables: Sequence[str] | None = None
    """The tables to write to this checkpoint; None means all tables in the save."""


class TableSave:
    """Takes a snapshot of all tables, and writes it once the destinations are known.

    shard: index of this server and the number of servers.
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
        """Start writing to a destination; each table needs a destination."""
        self._orders.put(destination)

    @property
    def is_over(self) -> bool:
        """Return whether the save is finished or was canceled."""
        return self._job.is_over

    def wait(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the files of each table, or None if writing does not finish within `timeout_s`.

        Raises the error if the save failed.
        """
        return self._job.wait(timeout_s)

    def dense(self, table: str) -> _core.DenseCut:
        """Return this server's part of a dense table: begin, values [N] and state [S, N]."""
        self._job.renew()  # fetching can take longer than writing the rows
        cut = self._dense.get(table)
        if cut is None:
            raise UnknownTableError(f"dense table '{table}' is not in this save")
        return cut

    def commit(self) -> None:
        """Mark rows unchanged since the snapshot as saved.

        Call this once the checkpoint is committed.
        """
        if self._clear_dirty:
            for cut in self._cuts.values():
                cut.commit()

    def end(self) -> None:
        """Cancel unfinished writes and release the snapshot."""
        self._job.end(_END_S)

    def _write(self, job: BackgroundJob) -> dict[str, Any]:
        waiting = {layout.table: layout for layout in self._layouts}
        written: dict[str, Any] = {}
        while True:
            place = self._next_order(job)
            self._require_shared(place)
            for table in list(waiting) if place.tables is None else place.tables:
                if table not in waiting:
                    raise UnknownTableError(
                        f"table '{table}' is not in this save, or was already written"
                    )
                written[table] = self._write_table(job, place, waiting.pop(table))
            if not waiting:
                return written

    def _next_order(self, job: BackgroundJob) -> Destination:
        while True:
            job.check()
            with contextlib.suppress(Empty):
                return self._orders.get(timeout=_LOOK_UP_S)

    def _require_shared(self, place: Destination) -> None:
        """Raise an error unless this server sees the marker file of the client that saves."""
        if place.folder.size(marker_file(place.token)) is None:
            raise CheckpointError(
                f"server {self._shard[0]} does not see the save that was started in "
                f"{place.folder.root}: use a directory that all servers and worker 0 share"
            )

    def _write_table(
        self, job: BackgroundJob, place: Destination, layout: RowLayout
    ) -> dict[str, Any]:
        cut = self._cuts[layout.table]
        folder, token, _ = place
        with RowFileWriter(folder, token, layout, *self._shard) as writer:
            for chunk in _chunks(cut, layout):
                job.check()
                writer.write(chunk)
        removed = []
        if self._only_dirty:
            removed = write_removed_keys(folder, token, layout.table, self._shard, [cut.removed()])
        if not self._clear_dirty:  # otherwise it tracks changes to its rows until the commit
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
    """Encode some of a server's elements of a dense table for sending.

    Format, little-endian: uint64 index of the server's first element, its number of elements,
    n and S of this message; float32 values[n], state[S, n].
    """
    values, state = cut.values[first:last], cut.state[:, first:last]
    head = np.array([cut.begin, len(cut.values), len(values), len(state)], "<u8")
    return b"".join((head.tobytes(), values.tobytes(), np.ascontiguousarray(state).tobytes()))
