"""Saves a snapshot of the tables of a store, with commands to all servers at once.

In shapes, N is the number of elements of a dense table and S the number of arrays of optimizer
state.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparsefleet.checkpoint import Manifest
from sparsefleet.checkpoint.manifest import FileEntry, TableEntry
from sparsefleet.checkpoint.names import absolute_path
from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint
from sparsefleet.checkpoint.row_chunk import RowLayout
from sparsefleet.errors import CheckpointError, ConfigError, DeadlineError, SparseFleetError
from sparsefleet.store.arrays import Floats
from sparsefleet.store.table_spec import (
    DenseSpec,
    TableSpec,
    chosen_specs,
    state_names,
    table_entry,
)

if TYPE_CHECKING:
    from sparsefleet.store.store import Store

__all__ = [
    "Base",
    "DENSE_OPTIMIZERS",
    "DenseTable",
    "ServerCalls",
    "ServerSnapshots",
    "StoreSave",
    "save_tables",
]

_MAX_CALLS = 32  # at a time
_WAIT_S = 1.0
_END_S = 3.0  # do not wait for a lost server


class ServerCalls:
    """Controls a long-running task on every server, identified by a token. Thread-safe."""

    def __init__(self, store: Store, token: str) -> None:
        self._store = store
        self._token = token

    @property
    def servers(self) -> range:
        return range(self._store.num_servers)

    def ask(
        self,
        server: int,
        name: str,
        asked: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> bytes:
        """Send a command to one server and return its reply."""
        body = json.dumps({"token": self._token, **(asked or {})}).encode()
        return self._store.command(server, name, body, timeout_s=timeout_s)

    def ask_all(
        self,
        name: str,
        asked: Mapping[str, Any] | None = None,
        servers: Collection[int] | None = None,
    ) -> dict[int, Any]:
        """Return the JSON replies by server. Waits for all replies, then raises the first error."""
        chosen = self.servers if servers is None else servers

        def ask(server: int) -> Any:
            return json.loads(self.ask(server, name, asked))

        if len(chosen) == 1:
            return {server: ask(server) for server in chosen}
        with ThreadPoolExecutor(min(len(chosen), _MAX_CALLS)) as pool:
            answers = {server: pool.submit(ask, server) for server in chosen}
        return {server: answer.result() for server, answer in answers.items()}

    def wait_for_all(self, name: str, timeout_s: float, what: str) -> dict[int, Any]:
        """Repeat command `name` until no server's reply is null; return the replies."""
        deadline = time.monotonic() + timeout_s
        done: dict[int, Any] = {}
        while len(done) < len(self.servers):
            waiting = [server for server in self.servers if server not in done]
            answers = self.ask_all(name, {"wait_s": _WAIT_S}, waiting)
            done |= {server: answer for server, answer in answers.items() if answer is not None}
            if len(done) < len(self.servers) and time.monotonic() > deadline:
                late = ", ".join(str(server) for server in self.servers if server not in done)
                raise DeadlineError(
                    f"{what}: server {late} did not finish within {timeout_s:g} s (timeout_s)"
                )
        return dict(sorted(done.items()))

    def end(self, name: str, asked: Mapping[str, Any] | None = None) -> None:
        """End the task on all reachable servers. Never raises an error."""
        for server in self.servers:
            try:
                self.ask(server, name, asked, timeout_s=_END_S)
            except SparseFleetError:
                continue  # the server cancels the work when its lease expires


_TIMEOUT_S = 3600.0
_CHUNK_ELEMENTS = 1 << 20  # elements of a dense table in one reply


class DenseTable(NamedTuple):
    """A whole dense table in the snapshot of a save."""

    values: Floats
    """The values, float32[N]."""
    state: Floats
    """The optimizer state, float32[S, N]."""


class ServerSnapshots:
    """A snapshot of the tables on all servers, held from `open` to `close`.

    Servers write sparse tables themselves; dense tables are fetched. Not thread-safe.
    """

    def __init__(
        self,
        store: Store,
        *,
        sparse: Mapping[str, TableSpec],
        dense: Mapping[str, DenseSpec],
        only_dirty: bool = False,
        clear_dirty: bool = False,
    ) -> None:
        self._sparse = sparse
        self._dense = dense
        self._dirty = {"only_dirty": only_dirty, "clear_dirty": clear_dirty}
        self._calls = ServerCalls(store, secrets.token_hex(8))
        self._is_open = False
        self._waiting: threading.Thread | None = None
        self._written: dict[int, Any] = {}
        self._error: BaseException | None = None

    @property
    def is_open(self) -> bool:
        return self._is_open

    def open(self) -> None:
        """Take the snapshot; rows may change again when it returns. Touches no file."""
        layouts = [RowLayout.of(table_entry(spec)) for spec in self._sparse.values()]
        self._is_open = True
        try:
            self._calls.ask_all(
                "save_begin",
                {
                    "tables": [list(layout) for layout in layouts],
                    "dense": list(self._dense),
                    **self._dirty,
                },
            )
        except BaseException:
            self.close()
            raise

    def write(
        self,
        pending: PendingCheckpoint,
        storage_options: Mapping[str, Any],
        tables: Sequence[str] | None = None,
    ) -> None:
        """Make servers start writing rows of `tables` (default: all) into a checkpoint."""
        asked: dict[str, Any] = {"path": pending.path, "checkpoint": pending.token}
        if tables is not None:
            asked["tables"] = list(tables)
        self._calls.ask_all("save_write", {**asked, "storage_options": dict(storage_options)})

    def start_waiting(self, timeout_s: float, what: str) -> None:
        """Start a thread that waits for the servers; without it their lease would expire."""

        def wait() -> None:
            try:
                self._written = self._calls.wait_for_all("save_wait", timeout_s, what)
            except BaseException as error:  # raised again by `finish`
                self._error = error

        self._waiting = threading.Thread(target=wait, name="sparsefleet-save-wait", daemon=True)
        self._waiting.start()

    def finish(self) -> None:
        """Wait until all servers have written their rows; raise the first error."""
        assert self._waiting is not None
        self._waiting.join()  # bounded by `timeout_s`
        if self._error is not None:
            raise self._error

    def table(self, pending: PendingCheckpoint, name: str) -> TableEntry:
        """Return the table's entry. This process must see the files that the servers wrote."""
        files: list[FileEntry] = []
        removed: list[FileEntry] = []
        for server, tables in self._written.items():
            found = tables[name]
            files += [FileEntry.from_json(entry) for entry in found["files"]]
            removed += [FileEntry.from_json(entry) for entry in found["removed"]]
            for entry in found["files"]:
                if pending.folder.size(entry["path"]) is None:
                    raise CheckpointError(
                        f"server {server} has written {entry['path']} in {pending.path}, but this "
                        "process cannot see it: use a directory that all servers and worker 0 share"
                    )
        entry = table_entry(self._sparse[name])
        return entry.with_files(files, removed, num_shards=len(self._written))

    def dense_table(self, table: str) -> DenseTable:
        """Fetch a dense table of the snapshot from the servers."""
        spec = self._dense[table]
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

    def close(self, *, is_saved: bool = False) -> None:
        """Release the snapshot. Never raises an error; idempotent.

        is_saved: whether the checkpoint is committed, so that rows unchanged since the snapshot
            count as saved. A server that misses this message writes more rows than necessary to the
            next delta.
        """
        if self._is_open:
            self._is_open = False
            self._calls.end("save_end", {"is_committed": True} if is_saved else None)


DENSE_OPTIMIZERS = "dense_optimizers"
"""The manifest note that maps dense tables to the kind of their optimizer."""


class Base(NamedTuple):
    """The checkpoint that a delta builds on."""

    path: str
    token: str
    """Token of the save that wrote the checkpoint; a different save at that path is rejected."""


class StoreSave:
    """Takes a snapshot on all servers, makes each write its rows, and commits when all are done.

    `open` is fast; for a snapshot consistent across servers, hold back pushes until it returns.
    `write` and `commit` may take a while, during which training continues. If anything
    fails, the previous checkpoint in the directory stays valid. Not thread-safe, but `open` and
    the later calls may come from different threads.

    tables: sparse and dense tables to save; None means all that the store has defined.
    base: makes this save a delta of the rows changed since the previous save of the same tables,
        which must have been made with `track`.
    track: whether a delta will follow; sparse tables need `track_dirty`.
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
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self.path = absolute_path(path)
        self._base = base
        self._options = dict(storage_options or {})
        self._timeout_s = timeout_s
        chosen = chosen_specs(store.specs, tables, "save")
        self.sparse = {n: spec for n, spec in chosen.items() if isinstance(spec, TableSpec)}
        """The sparse tables to save."""
        self.dense = {n: spec for n, spec in chosen.items() if isinstance(spec, DenseSpec)}
        """The dense tables to save."""
        self._cuts = ServerSnapshots(
            store,
            sparse=self.sparse,
            dense=self.dense,
            only_dirty=base is not None,
            clear_dirty=track or base is not None,
        )
        self._pending: PendingCheckpoint | None = None

    def open(self) -> None:
        """Take the snapshot; rows may change again when it returns. Touches no file."""
        self._cuts.open()

    def write(self) -> None:
        """Make servers start writing their rows; `commit` waits for them."""
        if not self._cuts.is_open:
            raise ConfigError(f"the save to {self.path} has no snapshot: call open() first")
        try:
            self._pending = PendingCheckpoint.begin(self.path, self._options or None)
            self._cuts.write(self._pending, self._options)
            self._cuts.start_waiting(self._timeout_s, f"the save to {self.path}")
        except BaseException:
            self.abort()
            raise

    def dense_table(self, table: str) -> DenseTable:
        """Fetch a dense table of the snapshot from the servers."""
        return self._cuts.dense_table(table)

    def dense_tensors(self) -> dict[str, Floats]:
        """Return all dense tables as tensors by name, with their state as `<name>/<state>`."""
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
        """Write tensors by name and the state of each worker, wait for the servers, and commit.

        If this method raises an error, the save is aborted.
        """
        pending = self._pending
        if pending is None:
            raise ConfigError(f"the save to {self.path} is not being written: call write() first")
        try:
            if tensors:
                pending.write_dense(tensors)
            pending.write_workers(workers)
            self._cuts.finish()
            optimizers = dict((notes or {}).get(DENSE_OPTIMIZERS, {}))  # tensors outside the store
            optimizers |= {name: spec.optimizer.kind for name, spec in self.dense.items()}
            manifest = pending.commit(
                step=step,
                tables=[self._cuts.table(pending, name) for name in self.sparse],
                base=None if self._base is None else self._base.path,
                base_token=None if self._base is None else self._base.token,
                notes={**(notes or {}), DENSE_OPTIMIZERS: optimizers},
            )
        except BaseException:
            self.abort()
            raise
        self._cuts.close(is_saved=True)
        return manifest

    def abort(self) -> None:
        """Release the snapshot and remove the files written so far.

        Never raises an error; idempotent.
        """
        self._cuts.close()
        if self._pending is not None:
            self._pending.abort()


def save_tables(
    store: Store,
    path: str | os.PathLike[str],
    *,
    tables: Collection[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> None:
    """Write a checkpoint of the tables, with one tensor per dense table; see `Store.save`.

    >>> import numpy as np, tempfile
    >>> from sparsefleet.store import LocalStore, TableSpec
    >>> first, second = LocalStore(), LocalStore()
    >>> for store in (first, second):
    ...     store.define(TableSpec(name="ads", dim=2))
    >>> rows = first.pull("ads", np.array([3, 5]))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     first.save(directory)
    ...     second.load(directory)
    >>> bool((second.pull("ads", np.array([3, 5]), train=False) == rows).all())
    True
    """
    save = StoreSave(
        store, path, tables=tables, storage_options=storage_options, timeout_s=timeout_s
    )
    save.open()
    save.write()
    save.commit(save.dense_tensors(), step=0)
