"""A running training job's rows, read from its servers.

In shapes, U is the number of distinct keys, D the row width.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import (
    ConfigError,
    RpcError,
    SparseFleetError,
    StoreUnavailableError,
    TableError,
)
from sparsefleet.serving.export.keyed_rows import KeyedRows, Tables
from sparsefleet.serving.export.manifest import ExportedTable, ExportManifest
from sparsefleet.serving.row_stores.row_cache import FetchedTable, distinct_keys
from sparsefleet.store import RemoteStore, RemoteStoreConfig
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["ServerRows"]

Found = tuple[Floats, NDArray[np.bool_]]
Ids = Mapping[str, NDArray[np.int64]]


class ServerRows:
    """A `RowStore` that reads from running servers. It never creates or changes rows.

    Each prediction uses current rows, but the dense parameters of the export; rows and parameters
    match only while training is paused. For fresh scores from a consistent snapshot, let the
    trainer publish updates.

    endpoints: all servers of the job, in order, "host:port".
    manifest: the manifest of the export to serve; its tables must be on the servers.
    job_key: if None, the key is found in the same way as in a worker; see docs/env.md.
    timeout_s: limit on one round trip. A broken connection is replaced on the next call.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        manifest: ExportManifest,
        job_key: bytes | None = None,
        transport: Literal["auto", "tls", "plain"] | None = None,
        timeout_s: float = 2.0,
    ) -> None:
        if isinstance(endpoints, str) or not endpoints:
            raise ConfigError(f"endpoints must be a list of 'host:port', got {endpoints!r}")
        self.version = manifest.digest
        self._endpoints = list(endpoints)
        self._manifest = manifest
        self._job_key = job_key
        self._transport = transport
        self._config = RemoteStoreConfig(
            timeout_s=timeout_s, connect_timeout_s=timeout_s, wire_dtype="float32"
        )
        self._lock = threading.Lock()
        self._store: RemoteStore | None = None
        self._tables = {entry.name: _ServerTable(self, entry) for entry in manifest.tables}

    def tables(self, ids: Ids | None = None) -> Tables:
        if not ids:
            return self._tables
        wanted = {name: distinct_keys(part) for name, part in ids.items()}
        found = self.fetch(wanted)
        return {
            name: table if name not in found else FetchedTable(table, wanted[name], *found[name])
            for name, table in self._tables.items()
        }

    def freshness(self) -> float | None:
        """Return the current time, since every prediction reads the servers' current rows."""
        return time.time()

    def check(self) -> None:
        store = self._connected()
        try:
            self._require_tables(store)
        except (RpcError, TableError) as error:
            raise self._unavailable(store, error) from error

    def close(self) -> None:
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    def fetch(self, wanted: Mapping[str, Keys]) -> dict[str, Found]:
        """Return rows of distinct keys by table (zeros if missing), and whether each row exists."""
        store = self._connected()
        try:
            zeros, _ = store.pull_many(wanted, train=False)
            initial, _ = store.pull_many(wanted, train=False, unknown="initial")
        except (RpcError, TableError) as error:
            raise self._unavailable(store, error) from error
        return {
            name: (rows, _known(self._tables[name].entry, rows, initial[name]))
            for name, rows in zeros.items()
        }

    def _connected(self) -> RemoteStore:
        """Return the connection to servers that have the tables, creating it if needed."""
        with self._lock:
            if self._store is not None:
                return self._store
            try:
                store = RemoteStore(
                    self._endpoints,
                    name="serve",
                    job_key=self._job_key,
                    transport=self._transport,
                    config=self._config,
                )
            except SparseFleetError as error:  # also raised if the number of servers does not match
                raise self._cannot(error) from error
            try:
                self._require_tables(store)
            except SparseFleetError as error:
                store.close()
                raise self._cannot(error) from error
            self._store = store
            return store

    def _require_tables(self, store: RemoteStore) -> None:
        for entry in self._manifest.tables:
            info = store.info(entry.name)
            if info.dense or info.dim != entry.dim:
                raise TableError(
                    f"table '{entry.name}' has rows of width {info.dim} on the servers, but "
                    f"{entry.dim} in the export"
                )
            if info.size == 0 and entry.rows:
                raise TableError(
                    f"table '{entry.name}' is empty on the servers, but the export has "
                    f"{entry.rows:,} rows; the servers were restarted without this table"
                )

    def _unavailable(self, store: RemoteStore, error: Exception) -> StoreUnavailableError:
        """Drop the connection and return the error; the next call reconnects.

        The old connection closes when no call uses it any more.
        """
        with self._lock:
            if self._store is store:
                self._store = None
        return self._cannot(error)

    def _cannot(self, error: Exception) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"rows cannot be read from the servers {', '.join(self._endpoints)}: {error}"
        )


class _ServerTable(KeyedRows):
    def __init__(self, store: ServerRows, entry: ExportedTable) -> None:
        super().__init__(entry)
        self._store = store

    def find(self, keys: Keys) -> Found:
        return self._store.fetch({self.entry.name: keys})[self.entry.name]


def _known(entry: ExportedTable, zeros: Floats, initial: Floats) -> NDArray[np.bool_]:
    """Return which rows exist, inferred from their values, since servers do not report it.

    If rows start as zeros, an all-zero row counts as missing, since the two look the same.
    """
    has_values: NDArray[np.bool_] = (zeros != 0).any(axis=1)
    if entry.initial.kind == "constant" and entry.initial.a == 0:
        return has_values
    reads_the_same: NDArray[np.bool_] = (zeros == initial).all(axis=1)
    return has_values | reads_the_same
