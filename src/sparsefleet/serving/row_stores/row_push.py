"""Load an export's rows into Redis without affecting the versions that are served from it."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sparsefleet.errors import CheckpointError, StoreUnavailableError
from sparsefleet.serving.export.export_directory import open_export
from sparsefleet.serving.export.manifest import ExportedTable, ExportManifest
from sparsefleet.serving.export.row_file import RowFile, open_tables
from sparsefleet.serving.row_stores.redis_rows import (
    COMPLETE,
    PushedVersion,
    RedisVersions,
    keys_to_bytes,
    row_size,
    rows_to_bytes,
)
from sparsefleet.serving.updates import RedisServer

__all__ = ["push_rows"]

_log = logging.getLogger("sparsefleet.serving")

_BATCH_BYTES = 1 << 20  # larger commands would delay predictions
_SAMPLE_ROWS = 1000
_LEASE_S = 60

Progress = Callable[[str, int, int], None]


def push_rows(
    directory: str | os.PathLike[str],
    server: RedisServer,
    *,
    label: str = "",
    progress: Progress | None = None,
) -> PushedVersion:
    """Load the rows of an export as a separate version, which is complete on return.

    Loading does not change which version is served; see `RedisVersions.activate`. An existing
    version is not loaded again. A half-loaded version is loaded again from the start. The number of
    rows and a sample of them are read back before the version counts as complete.

    label: human-readable name; must not be in use.
    progress: called with a table, the number of rows loaded so far, and the total.
    """
    return open_export(
        directory,
        "deep",  # all data to push is read anyway
        lambda path, manifest: _Push(path, manifest, server, label, progress).run(),
    )


class _Push:
    """Pushes one version to Redis. Not thread-safe."""

    def __init__(
        self,
        directory: Path,
        manifest: ExportManifest,
        server: RedisServer,
        label: str,
        progress: Progress | None,
    ) -> None:
        self._manifest = manifest
        self._tables = open_tables(directory, manifest.tables)
        self._server = server
        self._client: Any = server.client
        self._versions = RedisVersions(server)
        self._label = label
        self._progress = progress
        self._token = f"{socket.gethostname()}, process {os.getpid()}, {secrets.token_hex(8)}"
        self._lock = server.key(manifest.digest, "loading")

    def run(self) -> PushedVersion:
        digest = self._manifest.digest
        self._check_label()
        known = next((each for each in self._versions.all() if each.digest == digest), None)
        if known is not None and self._is_whole():
            _log.info("version %s is already in %s", digest, self._server.where)
            self._label = self._label or known.label
            return self._listed(known.pushed)
        self._warn_of_eviction()
        with self._server.asking(f"version {digest} cannot be pushed"):
            if not self._client.set(self._lock, self._token, nx=True, ex=_LEASE_S):
                raise self._is_being_pushed()
            try:
                self._client.hdel(self._server.key("versions"), digest)
                self._versions.remove_keys(digest, "rows:*")
                for name, table in self._tables.items():
                    self._load(self._versions.rows_key(digest, name), table)
                return self._listed(time.time())
            finally:
                self._release()

    def _load(self, key: str, table: RowFile) -> None:
        entry = table.entry
        rows_a_batch = max(1, _BATCH_BYTES // (8 + row_size(entry)))
        for begin in range(0, entry.rows, rows_a_batch):
            part = slice(begin, begin + rows_a_batch)
            fields = keys_to_bytes(table.keys[part])
            self._set(key, _flat(fields, rows_to_bytes(table.rows.take(part))))
            if self._progress is not None:
                self._progress(entry.name, min(begin + rows_a_batch, entry.rows), entry.rows)
        self._verify(key, table)
        self._set(key, [COMPLETE, str(entry.rows).encode()])

    def _verify(self, key: str, table: RowFile) -> None:
        """Check the number of rows in Redis, and compare a sample of them with the export."""
        entry: ExportedTable = table.entry
        count = self._client.hlen(key)
        if count != entry.rows:
            raise CheckpointError(
                f"table '{entry.name}': Redis at {self._server.where} has {count:,} rows after "
                f"the push, expected {entry.rows:,}; check whether another program writes to "
                f"{key}"
            )
        if not entry.rows:
            return
        places = np.unique(np.linspace(0, entry.rows - 1, _SAMPLE_ROWS).astype(np.int64))
        found = self._client.hmget(key, keys_to_bytes(table.keys[places]))
        for place, got, wanted in zip(
            places, found, rows_to_bytes(table.rows.take(places)), strict=True
        ):
            if got != wanted:
                raise CheckpointError(
                    f"table '{entry.name}': Redis at {self._server.where} returns different "
                    f"values for the row of key {int(table.keys[place])} than were pushed"
                )

    def _set(self, key: str, fields_and_rows: list[bytes]) -> None:
        """In one transaction, write fields and check that this process still holds the lock."""
        from redis.exceptions import WatchError

        try:
            with self._client.pipeline() as steps:
                steps.watch(self._lock)
                if steps.get(self._lock) != self._token.encode():
                    raise self._is_being_pushed()
                steps.multi()
                steps.hset(key, items=fields_and_rows)
                steps.expire(self._lock, _LEASE_S)
                steps.execute()
        except WatchError as error:
            raise self._is_being_pushed() from error

    def _listed(self, pushed: float) -> PushedVersion:
        manifest = self._manifest
        version = PushedVersion(
            digest=manifest.digest,
            label=self._label,
            created=manifest.created,
            pushed=pushed,
            rows=sum(entry.rows for entry in manifest.tables),
        )
        self._versions.list_whole(manifest, version)
        return version

    def _is_whole(self) -> bool:
        try:
            self._versions.check(self._manifest)
        except StoreUnavailableError as error:
            _log.warning("%s; pushing it again", error)
            return False
        return True

    def _check_label(self) -> None:
        for each in self._versions.all():
            if self._label and each.label == self._label and each.digest != self._manifest.digest:
                raise CheckpointError(
                    f"'{self._label}' already names version {each.digest} in "
                    f"{self._server.where}; choose a different name, or delete that version"
                )

    def _warn_of_eviction(self) -> None:
        from redis.exceptions import ResponseError

        with self._server.asking("Redis's settings cannot be read"):
            try:
                found = self._client.config_get("maxmemory-policy")
            except ResponseError:
                return  # hosted Redis services do not allow CONFIG
        policy = found.get("maxmemory-policy", found.get(b"maxmemory-policy", b"noeviction"))
        policy = policy.decode() if isinstance(policy, bytes) else policy
        if policy.startswith("allkeys"):
            _log.warning(
                "Redis at %s evicts keys when its memory is full (maxmemory-policy %s), and an "
                "evicted table makes the model unavailable; set maxmemory-policy to noeviction",
                self._server.where,
                policy,
            )

    def _is_being_pushed(self) -> CheckpointError:
        holder = self._client.get(self._lock)
        who = "somebody" if holder is None else holder.decode().rpartition(", ")[0]
        return CheckpointError(
            f"version {self._manifest.digest} is being pushed to {self._server.where} by {who}; "
            f"wait for it to finish (if killed, its claim expires {_LEASE_S} s after its last row)"
        )

    def _release(self) -> None:
        """Release the lock. After a failure, the version's data stays unlisted until the next push
        removes it.
        """
        with contextlib.suppress(Exception):
            if self._client.get(self._lock) == self._token.encode():
                self._client.delete(self._lock)


def _flat(fields: list[bytes], rows: list[bytes]) -> list[bytes]:
    return [part for pair in zip(fields, rows, strict=True) for part in pair]
