"""Saves and loads sparse tables, one checkpoint folder per table.

Servers write and read their own rows. If they do not share a disk, this process writes and reads
the rows for them, chunk by chunk.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.checkpoint.manifest import TableEntry
from sparsefleet.checkpoint.names import absolute_path
from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint
from sparsefleet.checkpoint.row_chunk import COLUMNS
from sparsefleet.errors import UnknownTableError
from sparsefleet.store.row_streams import replace_rows, row_chunks
from sparsefleet.store.rows import Rows
from sparsefleet.store.store_load import load_parts
from sparsefleet.store.store_save import DenseTable, ServerCalls, ServerSnapshots
from sparsefleet.store.table_spec import DenseSpec, TableSpec, counter_names, table_entry

if TYPE_CHECKING:
    from sparsefleet.store.store import Store

__all__ = ["TableFolders", "load_table_folders"]

_TIMEOUT_S = 3600.0

_log = logging.getLogger(__name__)


class TableFolders:
    """Saves a snapshot of several tables, each to its own folder.

    Call `open`, `write`, `finish` and `commit`, in this order.

    `commit` replaces each folder atomically; until then, and after `abort`, folders keep their
    previous contents. Not thread-safe.

    folders: the folder of each sparse table.
    dense: tables in the same snapshot to fetch with `dense_table`; they are not written.

    >>> import numpy as np, tempfile
    >>> from sparsefleet.store import LocalStore, TableSpec
    >>> store = LocalStore()
    >>> store.define(TableSpec(name="ads", dim=2))
    >>> rows = store.pull("ads", np.array([3, 5]))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     save = TableFolders(store, {"ads": f"{directory}/ads"})
    ...     save.open()
    ...     save.write()
    ...     save.finish()
    ...     save.commit()
    ...     Checkpoint.open(f"{directory}/ads").manifest.table("ads").num_rows
    2
    """

    def __init__(
        self,
        store: Store,
        folders: Mapping[str, str | os.PathLike[str]],
        *,
        dense: Collection[str] = (),
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._store = store
        self._folders = {table: absolute_path(path) for table, path in folders.items()}
        self._timeout_s = timeout_s
        self._sparse = {name: _sparse_spec(store, name) for name in folders}
        dense_specs = {name: store.specs[name] for name in dense}
        self._cuts = ServerSnapshots(
            store,
            sparse=self._sparse,
            dense={n: spec for n, spec in dense_specs.items() if isinstance(spec, DenseSpec)},
        )
        self._pending: dict[str, PendingCheckpoint] = {}
        self._servers_write = True
        self._entries: dict[str, TableEntry] = {}

    def open(self) -> None:
        """Take the snapshot; rows may change again when it returns. Touches no file."""
        self._cuts.open()

    def dense_table(self, table: str) -> DenseTable:
        """Fetch a dense table in the snapshot from the servers."""
        return self._cuts.dense_table(table)

    def write(self) -> None:
        """Make servers start writing their rows."""
        try:
            for table, path in self._folders.items():
                self._pending[table] = PendingCheckpoint.begin(path)
            begun = {pending.path: pending.token for pending in self._pending.values()}
            self._servers_write = _all_see(self._store, begun)
            if self._servers_write:
                for table, pending in self._pending.items():
                    self._cuts.write(pending, {}, [table])
                if self._pending:
                    self._cuts.start_waiting(self._timeout_s, f"the save to {', '.join(begun)}")
            else:
                _warn("write", next(iter(begun)))
        except BaseException:
            self.abort()
            raise

    def finish(self) -> None:
        """Wait until all rows are on disk; they become valid only with `commit`."""
        try:
            if self._servers_write and self._pending:
                self._cuts.finish()
            for table, pending in self._pending.items():
                if self._servers_write:
                    self._entries[table] = self._cuts.table(pending, table)
                else:
                    entry = table_entry(self._sparse[table])
                    files = pending.write_rows(entry, 0, 1, row_chunks(self._store, table))
                    self._entries[table] = entry.with_files(files)
        except BaseException:
            self.abort()
            raise

    def commit(self) -> None:
        """Replace the old rows with the new rows, folder by folder."""
        try:
            for table, pending in self._pending.items():
                pending.commit(step=0, tables=[self._entries[table]])
        except BaseException:
            self.abort()
            raise
        self._cuts.close(is_saved=True)

    def abort(self) -> None:
        """Remove all files that are not committed yet. Never raises an error; idempotent."""
        self._cuts.close()
        for pending in self._pending.values():
            pending.abort()


def load_table_folders(
    store: Store,
    folders: Mapping[str, Checkpoint],
    *,
    without_state: Collection[str] = (),
    timeout_s: float = _TIMEOUT_S,
) -> None:
    """Replace the rows of tables with those in their folders, on any number of servers.

    without_state: tables whose optimizer state is reset. Everything is checked before the first row
        changes. No pushes may run at the same time.
    """
    for checkpoint in folders.values():
        checkpoint.verify(deep=False)
    saves = {found.path: found.manifest.token for found in folders.values()}
    if _all_see(store, saves):
        parts = [
            {
                "path": checkpoint.path,
                "checkpoint": checkpoint.manifest.token,
                "storage_options": {},
                "tables": {table: _counters(store, table)},
                "dense": [],
                "without_state": [table] if table in without_state else [],
            }
            for table, checkpoint in folders.items()
        ]
        load_parts(store, parts, f"the load from {', '.join(saves)}", timeout_s)
        return
    _warn("read", next(iter(saves)))
    for table, checkpoint in folders.items():
        for _ in checkpoint.rows(table, columns=()):
            pass  # reading checks every file before the first row changes
    for table, checkpoint in folders.items():
        replace_rows(store, table, _rows(checkpoint, table, table not in without_state))


def _rows(checkpoint: Checkpoint, table: str, with_state: bool) -> Iterator[Rows]:
    """Read rows without counters, as if they had just been pushed; only servers load counters."""
    columns = [name for name in COLUMNS if name == "values" or (name == "state" and with_state)]
    return (Rows(*chunk) for chunk in checkpoint.rows(table, columns=columns))


def _all_see(store: Store, saves: Mapping[str, str]) -> bool:
    """Return whether all servers can access the folders and find the saves (tokens by path)."""
    if not saves:
        return True
    calls = ServerCalls(store, next(iter(saves.values())))
    answers = calls.ask_all("sees_saves", {"saves": list(saves.items())})
    return all(answer["sees"] for answer in answers.values())


def _warn(action: str, path: str) -> None:
    _log.warning(
        "%s is not accessible to all servers: this process will %s all rows for them, which is "
        "slower; use a directory that all servers share",
        path,
        action,
    )


def _sparse_spec(store: Store, table: str) -> TableSpec:
    spec = store.specs.get(table)
    if not isinstance(spec, TableSpec):
        raise UnknownTableError(f"no sparse table '{table}' to save: call define() first")
    return spec


def _counters(store: Store, table: str) -> list[str]:
    """Return the counters that the table keeps, or () if a different process defined the table."""
    spec = store.specs.get(table)
    return list(counter_names(spec)) if isinstance(spec, TableSpec) else []
