"""Saves the tables of one server in the background, from a snapshot, while training continues.

In shapes, N is the number of elements of a dense table on this server, S the number of arrays of
optimizer state.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from sparsefleet import _core
from sparsefleet.checkpoint import RowChunk
from sparsefleet.checkpoint.folder import Folder
from sparsefleet.checkpoint.names import marker_file
from sparsefleet.checkpoint.row_chunk import RowLayout
from sparsefleet.checkpoint.row_file_writer import RowFileWriter, write_removed_keys
from sparsefleet.errors import CheckpointError, DeadlineError, UnknownTableError

__all__ = ["BackgroundJob", "Destination", "TableSave", "dense_to_bytes"]

# With a much higher value, a starved thread would hold a shard's lock for too long.
_NICENESS = 10


class BackgroundJob:
    """Runs ``work`` in its own thread and keeps the result. Thread-safe.

    The client that started the job must renew its lease by calling ``wait`` or ``renew`` at least
    every ``lease_s`` seconds. ``clean_up`` is called once, when ``end`` is called or the lease
    expires. With ``gives_way``, the thread runs at a lower priority than the server's requests.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[BackgroundJob], dict[str, Any]],
        *,
        lease_s: float,
        clean_up: Callable[[], None],
        gives_way: bool = False,
    ) -> None:
        self._name = name
        self._work = work
        self._clean_up = clean_up
        self._lease_s = lease_s
        self._gives_way = gives_way
        self._changed = threading.Condition()
        self._is_done = False
        self._is_ended = False
        self._result: dict[str, Any] = {}
        self._error: Exception | None = None
        self._asked = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"sparsefleet-{name}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Return whether ``end`` was called or the lease has expired, and cleanup is done."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float) -> dict[str, Any] | None:
        """Wait up to ``timeout_s``; return the result, or None if the work is still running.

        Raises the error that the work raised, if any.
        """
        with self._changed:
            self._asked = time.monotonic()
            self._changed.wait_for(lambda: self._is_done, timeout_s)
            self._asked = time.monotonic()
            if self._error is not None:
                raise self._error
            return self._result if self._is_done else None

    def renew(self) -> None:
        """Renew the lease."""
        with self._changed:
            self._asked = time.monotonic()

    def check(self) -> None:
        """Raise an error if the job was canceled or its lease expired. Must be called often."""
        with self._changed:
            if self._is_ended:
                raise DeadlineError(f"{self._name} was canceled")
            if self._left_s() <= 0:
                raise DeadlineError(
                    f"{self._name} was canceled: its client has not polled it for "
                    f"{self._lease_s:g} s"
                )

    def end(self, timeout_s: float) -> None:
        """Cancel the job and wait up to ``timeout_s`` for its thread."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _left_s(self) -> float:
        return self._asked + self._lease_s - time.monotonic()

    def _run(self) -> None:
        if self._gives_way:
            _lower_priority()
        try:
            self._result = self._work(self)
        except Exception as error:  # raised again by `wait`
            self._error = error
        with self._changed:
            self._is_done = True
            self._changed.notify_all()
            while not self._is_ended and (left_s := self._left_s()) > 0:
                self._changed.wait(left_s)
        self._clean_up()


def _lower_priority() -> None:
    """Lower the priority of this thread; only Linux has thread priorities."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


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
