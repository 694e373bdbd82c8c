"""Rows in Redis, read in the same way as services read them."""

from __future__ import annotations

from collections.abc import Mapping

from sparsefleet.errors import (
    CheckpointMissingError,
    CorruptFileError,
    ShapeError,
    StoreUnavailableError,
)
from sparsefleet.serving.export.keyed_rows import KeyedRows
from sparsefleet.serving.export.manifest import ExportManifest
from sparsefleet.serving.row_stores import RedisVersions, open_rows
from sparsefleet.serving.row_stores.row_store import RowStore
from sparsefleet.serving.updates import RedisServer
from sparsefleet.serving.verify.offline_model import OfflineModel
from sparsefleet.serving.verify.side import FoundRows, Side, TableFacts
from sparsefleet.serving.verify.sides import formats_of
from sparsefleet.store.arrays import Keys

__all__ = ["HalfLoadedError", "RedisSide"]


class HalfLoadedError(StoreUnavailableError):
    """Raised if a store contains only some of a version's rows."""


class RedisSide(Side):
    """The version under test if it is in Redis, even if inactive; otherwise the active version.

    Raises HalfLoadedError if Redis has only some of the rows of the version under test, and
    CheckpointMissingError if it has none and no version is active.
    """

    def __init__(self, url: str, model: OfflineModel, *, timeout_s: float) -> None:
        self._server = RedisServer(url, timeout_s=timeout_s)
        super().__init__(self._server.where)
        try:
            self._versions = RedisVersions(self._server)
            self.is_active = self._versions.active() == model.manifest.digest
            self._manifest = self._manifest_there(model.manifest)
            self._check_whole()
            self._rows: RowStore = open_rows(
                model.directory, self._manifest, rows=url, cache_bytes=0, timeout_s=timeout_s
            )
        except BaseException:
            self._server.close()
            raise

    def version(self) -> str:
        return self._manifest.digest

    def updated(self) -> float | None:
        return self._rows.freshness()

    def settings(self) -> Mapping[str, str]:
        return {"store": "Redis", "active": str(self.is_active), **formats_of(self._manifest)}

    def tables(self) -> Mapping[str, TableFacts]:
        counted = self.updated() is None  # otherwise some rows are stored with the updates
        return {
            entry.name: TableFacts(
                entry.dim, self._count(entry.name) if counted else None, entry.format
            )
            for entry in self._manifest.tables
        }

    def _count(self, table: str) -> int:
        key = self._versions.rows_key(self._manifest.digest, table)
        with self._server.asking(f"rows of table '{table}' cannot be counted"):
            return int(self._server.client.hlen(key)) - 1  # one field marks the table as complete

    def fetch(self, table: str, keys: Keys) -> FoundRows:
        rows = self._rows.tables()[table]
        assert isinstance(rows, KeyedRows)
        try:
            values, found = rows.find(keys)
        except CorruptFileError as error:
            raise ShapeError(str(error)) from error
        return FoundRows(keys, found, values)

    def close(self) -> None:
        self._rows.close()
        self._server.close()

    def _manifest_there(self, wanted: ExportManifest) -> ExportManifest:
        if any(version.digest == wanted.digest for version in self._versions.all()):
            return wanted
        if self._is_loading(wanted.digest):
            raise HalfLoadedError(
                f"{self._server.where} has only part of version {wanted.digest}, because a push is "
                "running or was interrupted; push the version again with `sparsefleet push-rows`"
            )
        active = self._versions.active()
        if active is None:
            raise CheckpointMissingError(
                f"{self._server.where} has no version {wanted.digest} and no active version; push "
                "the version with `sparsefleet push-rows`"
            )
        return self._versions.manifest(active)

    def _check_whole(self) -> None:
        try:
            self._versions.check(self._manifest)
        except StoreUnavailableError as error:
            if isinstance(error.__cause__, Exception):
                raise  # Redis itself did not answer
            raise HalfLoadedError(str(error)) from error

    def _is_loading(self, digest: str) -> bool:
        with self._server.asking("keys cannot be listed"):
            found = self._server.client.scan_iter(match=self._server.key(digest, "*"), count=1000)
            return next(iter(found), None) is not None
