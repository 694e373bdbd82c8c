"""Open a served model's rows, combined with the updates that a trainer publishes.

In shapes, U is the number of distinct keys, D the row width.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import ConfigError, SparseFleetError, StoreUnavailableError
from sparsefleet.serving.export.keyed_rows import KeyedRows, RowSource, Tables
from sparsefleet.serving.export.manifest import ExportManifest
from sparsefleet.serving.row_stores.redis_rows import RedisRows
from sparsefleet.serving.row_stores.row_store import TablesSnapshot
from sparsefleet.serving.row_stores.server_rows import ServerRows
from sparsefleet.serving.updates import DenseValues, ModelSnapshot, UpdateReader, is_redis, open_log
from sparsefleet.serving.updates.update import TableOverlay
from sparsefleet.store.arrays import Floats, Keys

if TYPE_CHECKING:
    from sparsefleet.serving.row_stores.row_store import RowStore

__all__ = ["UpdatedRows", "open_rows"]

_log = logging.getLogger("sparsefleet.serving")

_POLL_S = 0.25
_MAX_WAIT_S = 5.0  # time between polls if the log is unreachable
_END_S = 30.0

Ids = Mapping[str, NDArray[np.int64]]


class UpdatedRows:
    """A `RowStore` that layers updates over another store, the base.

    A thread polls for updates; each update becomes active for all tables and the dense parameters
    at once. If an update is missing, damaged or from a different model, that is reported in
    `problem` and logged, and the last good snapshot is served until a full update arrives.

    base: the store with the export's rows, which is closed together with this store.
    updates: the directory, or the Redis URL, that a trainer publishes to.

    Needs memory for the rows that changed since the export.
    """

    def __init__(
        self, base: RowStore, updates: str | os.PathLike[str], *, manifest: ExportManifest
    ) -> None:
        if base.version != manifest.digest:
            raise ConfigError(
                f"the rows belong to the export {base.version}, but the manifest belongs to "
                f"{manifest.digest}"
            )
        self._base = base
        self._log = open_log(updates, manifest.digest)
        self._reader = UpdateReader(self._log, manifest.digest, manifest.tables)
        self._snapshot: ModelSnapshot | None = None
        self._listeners: list[weakref.WeakMethod[Callable[[DenseValues], None]]] = []
        self._lock = threading.Lock()
        self._problem: str | None = None
        self._ending = threading.Event()
        self._look()  # so that a new service does not start with old rows
        self._thread = threading.Thread(target=self._run, name="sparsefleet-updates", daemon=True)
        self._thread.start()

    @property
    def version(self) -> str:
        return self._base.version

    @property
    def sequence(self) -> int:
        """Return the number of the newest active update; 0 is the export itself."""
        snapshot = self._snapshot
        return 0 if snapshot is None else snapshot.sequence

    @property
    def problem(self) -> str | None:
        """Return why newer updates are not active, or None if there is no problem."""
        return self._problem

    @property
    def memory_bytes(self) -> int:
        """Return the memory used by rows that changed since the export."""
        snapshot = self._snapshot
        return 0 if snapshot is None else snapshot.rows.memory_bytes

    def tables(self, ids: Ids | None = None) -> Tables:
        snapshot = self._snapshot
        base = self._base.tables(ids)
        if snapshot is None:
            return base
        tables = {
            name: _laid_over(table, snapshot.rows.table(name)) for name, table in base.items()
        }
        return TablesSnapshot(tables, snapshot.dense)

    def freshness(self) -> float | None:
        snapshot = self._snapshot
        return None if snapshot is None else snapshot.made

    def check(self) -> None:
        """Check only the base; if updates stop, old rows are served and their age is reported."""
        self._base.check()

    def prepare_with(self, listener: Callable[[DenseValues], None]) -> None:
        """Register an engine's method to call before each update becomes active.

        Keeps only a weak reference. If an update is already active, also calls the method now.
        """
        with self._lock:
            self._listeners.append(weakref.WeakMethod(listener))
        snapshot = self._snapshot
        if snapshot is not None:
            listener(snapshot.dense)

    def close(self) -> None:
        self._ending.set()
        self._thread.join(_END_S)
        self._log.close()
        self._base.close()

    def _run(self) -> None:
        wait_s = _POLL_S
        while not self._ending.wait(wait_s):
            try:
                is_reached = self._look()
            except Exception as error:  # the thread must keep running while rows are served
                self._report(f"{type(error).__name__}: {error}")
                is_reached = False
            wait_s = _POLL_S if is_reached else min(2 * wait_s, _MAX_WAIT_S)

    def _look(self) -> bool:
        """Apply new updates; return whether the log they are published to could be reached."""
        try:
            self._reader.catch_up(self._prepare)
        except StoreUnavailableError as error:
            self._report(str(error))
            return False
        except SparseFleetError as error:  # a different model's updates are not applied
            self._report(str(error))
            return True
        self._snapshot = self._reader.snapshot
        self._report(self._reader.problem)
        return True

    def _prepare(self, snapshot: ModelSnapshot) -> None:
        with self._lock:
            self._listeners = [each for each in self._listeners if each() is not None]
            calls = [each() for each in self._listeners]
        for call in calls:
            if call is not None:
                call(snapshot.dense)

    def _report(self, problem: str | None) -> None:
        if problem != self._problem:
            self._problem = problem
            if problem is None:
                _log.info("updates from %s are applied again", self._log.where)
            else:
                _log.warning("updates are not applied: %s", problem)


class _UpdatedTable(KeyedRows):
    """A table with changes layered over it."""

    def __init__(self, base: KeyedRows, overlay: TableOverlay) -> None:
        super().__init__(base.entry, base.initial)
        self._base = base
        self._overlay = overlay

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        rows = np.zeros((len(keys), self.entry.dim), np.float32)
        known = np.zeros(len(keys), np.bool_)
        changed = self._overlay.find(keys, rows, known)
        if not changed.all():
            asked = ~changed
            rows[asked], known[asked] = self._base.find(keys[asked])
        return rows, known


def _laid_over(table: RowSource, overlay: TableOverlay) -> RowSource:
    if not isinstance(table, KeyedRows):
        raise ConfigError(
            f"updates cannot be applied on top of a {type(table).__name__}, which does not look up "
            "rows by key"
        )
    return _UpdatedTable(table, overlay) if len(overlay) else table


def open_rows(
    directory: str | os.PathLike[str],
    manifest: ExportManifest,
    *,
    rows: str | None = None,
    updates: str | os.PathLike[str] | None = None,
    cache_bytes: int = 256 << 20,
    timeout_s: float = 1.0,
) -> RowStore:
    """Open the rows of the export in `directory`.

    rows: None for the export's own files, `redis://host:port/database?model=NAME` for Redis, or
        "host:port,host:port" for a training job's servers.
    updates: the directory or Redis that a trainer publishes to. If None, updates
        are read from the Redis server with the rows; without Redis, there are no updates.

    For cache_bytes and timeout_s, see `RedisRows`.
    """
    from sparsefleet.serving.row_stores.row_store import FileRows

    base: RowStore
    if rows is None:
        base = FileRows(directory, manifest=manifest)
    elif is_redis(rows):
        base = RedisRows(rows, manifest=manifest, cache_bytes=cache_bytes, timeout_s=timeout_s)
        updates = rows if updates is None else updates
    else:
        endpoints = [part for part in rows.split(",") if part]
        try:
            for endpoint in endpoints:
                parse_endpoint(endpoint)
        except ConfigError as error:
            raise ConfigError(
                f"rows {rows!r}: expected redis://HOST:PORT/DATABASE?model=NAME, or the servers as "
                f"HOST:PORT,HOST:PORT ({error})"
            ) from error
        base = ServerRows(endpoints, manifest=manifest, timeout_s=timeout_s)
        if updates is not None:
            raise ConfigError(
                f"the rows on the servers {rows} are always current, so updates from "
                f"{os.fspath(updates)} would be older; omit the updates"
            )
    return base if updates is None else UpdatedRows(base, updates, manifest=manifest)
