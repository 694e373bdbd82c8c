"""Rows in Redis, as services read them."""

from __future__ import annotations

from collections.abc import Mapping

from sparsefleet.errors import (
    CheckpointMissingError,
    CorruptFileError,
    ShapeError,
    StoreUnavailableError,
)
from sparsefleet.export.keyed_rows import KeyedRows
from sparsefleet.export.manifest import Manifest
from sparsefleet.serve.row_store import RowStore
from sparsefleet.serve.row_stores import RedisVersions, open_rows
from sparsefleet.store.arrays import Keys
from sparsefleet.updates import RedisServer
from sparsefleet.verify.export_side import formats_of
from sparsefleet.verify.offline_model import OfflineModel
from sparsefleet.verify.side import FoundRows, Side, TableFacts

__all__ = ["HalfLoadedError", "RedisSide"]


class HalfLoadedError(StoreUnavailableError):
    """A version of which a store has only some rows."""


class RedisSide(Side):
    """The version under test if Redis has it, be it active or not; else the active one.

    Raises HalfLoadedError if Redis has not all rows of it, CheckpointMissingError if it has none.
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
        counted = self.updated() is None  # else some rows are elsewhere
        return {
            entry.name: TableFacts(
                entry.dim, self._count(entry.name) if counted else None, entry.format
            )
            for entry in self._manifest.tables
        }

    def _count(self, table: str) -> int:
        key = self._versions.rows_key(self._manifest.digest, table)
        with self._server.asking(f"rows of table '{table}' cannot be counted"):
            return int(self._server.client.hlen(key)) - 1  # one field says that it is whole

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

    def _manifest_there(self, wanted: Manifest) -> Manifest:
        if any(version.digest == wanted.digest for version in self._versions.all()):
            return wanted
        if self._is_loading(wanted.digest):
            raise HalfLoadedError(
                f"{self._server.where} has only a part of version {wanted.digest}: it is being "
                "pushed, or a push was broken off; push it again with `sparsefleet push-rows`"
            )
        active = self._versions.active()
        if active is None:
            raise CheckpointMissingError(
                f"{self._server.where} has no version {wanted.digest}, and none is active: push "
                "it with `sparsefleet push-rows`"
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
