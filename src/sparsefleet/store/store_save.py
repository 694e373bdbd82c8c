"""A save of all tables of a store at one moment.

Letters: N elements of a dense table, S arrays of optimizer state.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparsefleet.checkpoint import (
    FileEntry,
    Manifest,
    PendingCheckpoint,
    RowLayout,
    TableEntry,
)
from sparsefleet.errors import CheckpointError, ConfigError
from sparsefleet.store.arrays import Floats
from sparsefleet.store.checkpoint_path import absolute_path
from sparsefleet.store.server_calls import ServerCalls
from sparsefleet.store.table_entry import state_names, table_entry
from sparsefleet.store.table_spec import DenseSpec, TableSpec

if TYPE_CHECKING:
    from sparsefleet.store.store import Store

__all__ = ["Base", "DENSE_OPTIMIZERS", "DenseTable", "StoreSave"]

DENSE_OPTIMIZERS = "dense_optimizers"
"""The note of a manifest: dense table -> kind of its optimizer."""

_CHUNK_ELEMENTS = 1 << 20  # of a dense table in one reply


class Base(NamedTuple):
    """The checkpoint that a delta builds on."""

    path: str
    token: str
    """Of the save that made it; another one there is refused."""


class DenseTable(NamedTuple):
    """A whole dense table as of the moment of a save."""

    values: Floats
    """float32[N]"""
    state: Floats
    """float32[S, N]"""


class StoreSave:
    """Opens a cut through all servers, has each write its rows, and commits when all have.

    `open` is quick; who wants the tables of one moment keeps pushes away until it returns. `write`
    and `commit` take as long as the disks do, while training goes on. Whatever fails, what the
    directory held before stays in force. Not thread-safe; `open` and the rest may be called from
    two threads, one after the other.

    tables: names of those to save, sparse and dense; None is all that the store has defined.
    base: the checkpoint that the save before made of the same tables, with `track`: this one is
        a delta to it, with the rows that changed since.
    track: a delta is to follow; sparse tables need `track_dirty`.
    """

    def __init__(
        self,
        store: Store,
        path: str | os.PathLike[str],
        *,
        tables: Collection[str] | None = None,
        base: Base | None = None,
        track: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        timeout_s: float = 3600.0,
    ) -> None:
        self.path = absolute_path(path)
        self._store = store
        self._base = base
        self._track = track or base is not None
        self._options = dict(storage_options or {})
        self._timeout_s = timeout_s
        chosen = _chosen(store.specs, tables)
        self.sparse = {n: spec for n, spec in chosen.items() if isinstance(spec, TableSpec)}
        """The sparse tables in it."""
        self.dense = {n: spec for n, spec in chosen.items() if isinstance(spec, DenseSpec)}
        """The dense tables in it."""
        self._calls = ServerCalls(store, secrets.token_hex(8))
        self._is_open = False
        self._pending: PendingCheckpoint | None = None
        self._waiting: threading.Thread | None = None
        self._written: dict[int, Any] = {}
        self._error: BaseException | None = None

    def open(self) -> None:
        """The moment of the save: when it returns, rows may change again. No file is touched."""
        layouts = [RowLayout.of(table_entry(spec)) for spec in self.sparse.values()]
        self._is_open = True
        try:
            self._calls.ask_all(
                "save_begin",
                {
                    "tables": [list(layout) for layout in layouts],
                    "dense": list(self.dense),
                    "only_dirty": self._base is not None,
                    "clear_dirty": self._track,
                },
            )
        except BaseException:
            self.abort()
            raise

    def write(self) -> None:
        """Servers begin to write their rows; see `commit`."""
        if not self._is_open:
            raise ConfigError(f"the save to {self.path} has no cuts: call open() first")
        try:
            self._pending = PendingCheckpoint.begin(self.path, self._options or None)
            asked = {"path": self._pending.path, "checkpoint": self._pending.token}
            self._calls.ask_all("save_write", {**asked, "storage_options": self._options})
        except BaseException:
            self.abort()
            raise
        self._waiting = threading.Thread(
            target=self._wait, name="sparsefleet-save-wait", daemon=True
        )
        self._waiting.start()  # servers give a save up that nobody asks after

    def dense_table(self, table: str) -> DenseTable:
        """A dense table as it was when the cuts were opened; fetched from the servers."""
        spec = self.dense[table]
        arrays = sum(map(len, state_names(spec.optimizer)))
        values = np.empty(spec.size, np.float32)
        state = np.empty((arrays, spec.size), np.float32)
        for server in self._calls.servers:
            first, size_there = 0, 1
            while first < size_there:
                asked = {"table": table, "first": first, "last": first + _CHUNK_ELEMENTS}
                part = self._calls.ask(server, "save_dense", asked)
                begin, size_there, n, _ = np.frombuffer(part, "<u8", 4).tolist()
                if n:
                    at = slice(begin + first, begin + first + n)
                    floats = np.frombuffer(part, "<f4", offset=32).reshape(1 + arrays, n)
                    values[at], state[:, at] = floats[0], floats[1:]
                first += _CHUNK_ELEMENTS
        return DenseTable(values, state)

    def dense_tensors(self) -> dict[str, Floats]:
        """All dense tables, each as one tensor of its name, and its state as `<name>/<state>`."""
        tensors: dict[str, Floats] = {}
        for name, spec in self.dense.items():
            values, state = self.dense_table(name)
            wide, single = state_names(spec.optimizer)
            tensors[name] = values
            tensors |= {
                f"{name}/{a}": part for a, part in zip((*wide, *single), state, strict=True)
            }
        return tensors

    def commit(
        self,
        tensors: Mapping[str, Any],
        *,
        step: int,
        workers: Sequence[Mapping[str, Any]] = (),
        notes: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Writes tensors by name and what each worker needs to go on, and waits for the servers.

        On return the checkpoint is in force. If it raises, the save is aborted.
        """
        pending = self._pending
        if pending is None or self._waiting is None:
            raise ConfigError(f"the save to {self.path} is not being written: call write() first")
        try:
            if tensors:
                pending.write_dense(tensors)
            pending.write_workers(workers)
            self._waiting.join()  # ends: `timeout_s`
            if self._error is not None:
                raise self._error
            optimizers = dict((notes or {}).get(DENSE_OPTIMIZERS, {}))  # of no table of the store
            optimizers |= {name: spec.optimizer.kind for name, spec in self.dense.items()}
            manifest = pending.commit(
                step=step,
                tables=self._tables(pending),
                base=None if self._base is None else self._base.path,
                base_token=None if self._base is None else self._base.token,
                notes={**(notes or {}), DENSE_OPTIMIZERS: optimizers},
            )
        except BaseException:
            self.abort()
            raise
        # A server that does not hear of it has more rows than it must in the next delta.
        self._calls.end("save_end", {"in_force": True})
        return manifest

    def abort(self) -> None:
        """Gives the save up: cuts are dropped, its files removed. Never raises; idempotent."""
        if self._is_open:
            self._is_open = False
            self._calls.end("save_end")
        if self._pending is not None:
            self._pending.abort()

    def _wait(self) -> None:
        """In a thread of its own."""
        try:
            self._written = self._calls.wait_for_all(
                "save_wait", self._timeout_s, f"the save to {self.path}"
            )
        except BaseException as error:  # the thread's edge: raised by `commit`
            self._error = error

    def _tables(self, pending: PendingCheckpoint) -> list[TableEntry]:
        """What the servers have written, table by table; all of it must be seen from here."""
        files: dict[str, list[FileEntry]] = {name: [] for name in self.sparse}
        removed: dict[str, list[FileEntry]] = {name: [] for name in self.sparse}
        for server, tables in self._written.items():
            for name, found in tables.items():
                files[name] += [FileEntry.from_json(entry) for entry in found["files"]]
                removed[name] += [FileEntry.from_json(entry) for entry in found["removed"]]
                for entry in found["files"]:
                    if pending.folder.size(entry["path"]) is None:
                        raise CheckpointError(
                            f"server {server} has written {entry['path']} in {self.path}, but it "
                            "is not seen here: give a directory that all servers and worker 0 share"
                        )
        num_shards = len(self._written)
        return [
            table_entry(spec).with_files(files[name], removed[name], num_shards=num_shards)
            for name, spec in self.sparse.items()
        ]


def _chosen(
    specs: Mapping[str, TableSpec | DenseSpec], names: Collection[str] | None
) -> dict[str, TableSpec | DenseSpec]:
    if names is None:
        if not specs:
            raise ConfigError("no table is defined, so there is nothing to save: define() first")
        return dict(specs)
    unknown = sorted(set(names) - specs.keys())
    if unknown:
        raise ConfigError(f"there is no table '{unknown[0]}' to save; there are {', '.join(specs)}")
    return {name: spec for name, spec in specs.items() if name in names}
