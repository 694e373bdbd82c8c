"""Copies of a model to compare with an export: exports, checkpoints, a job's servers, Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.errors import (
    CheckpointMissingError,
    CorruptFileError,
    ShapeError,
    StoreUnavailableError,
    UnknownTableError,
)
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.export.keyed_rows import KeyedRows
from sparsefleet.serving.export.manifest import ExportManifest, Schema
from sparsefleet.serving.export.torch_engine import TorchEngine
from sparsefleet.serving.row_stores import RedisVersions, open_rows
from sparsefleet.serving.row_stores.row_store import RowStore
from sparsefleet.serving.updates import RedisServer
from sparsefleet.serving.verify.case import OfflineModel
from sparsefleet.serving.verify.side import FoundRows, Role, Side, TableFacts, Trace
from sparsefleet.store import RemoteStore, RemoteStoreConfig
from sparsefleet.store.arrays import Keys

__all__ = [
    "CheckpointSide",
    "ExportSide",
    "HalfLoadedError",
    "RedisSide",
    "ServersSide",
    "checksums_of",
    "formats_of",
]


class ExportSide(Side):
    """Another export, which should equal the export under test."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._model = OfflineModel(name)
        self._engine: TorchEngine | None = None

    def version(self) -> str:
        return self._model.manifest.digest

    def schema(self) -> Schema:
        return self._model.schema

    def settings(self) -> Mapping[str, str]:
        manifest = self._model.manifest
        return formats_of(manifest) | {"torch": manifest.made_by.get("torch", "")}

    def checksums(self) -> Mapping[str, str]:
        return checksums_of(self._model.manifest)

    def dense(self) -> Arrays:
        """Return the parameters stored in the graph, because predictions use those."""
        return self._model.dense

    def tables(self) -> Mapping[str, TableFacts]:
        return {
            entry.name: TableFacts(entry.dim, entry.rows, entry.format)
            for entry in self._model.manifest.tables
        }

    def fetch(self, table: str, keys: Keys) -> FoundRows:
        file = self._model.tables[table]
        return FoundRows(keys, file.known(keys), file.rows_of(keys, "zeros"))

    def predict(self, arrays: Arrays) -> Arrays:
        if self._engine is None:
            self._engine = TorchEngine(self._model.graph, self._model.schema)
        return self._engine.predict(arrays, self._model.tables)

    def trace(self, arrays: Arrays) -> Trace:
        return self._model.trace(arrays)


def checksums_of(manifest: ExportManifest) -> dict[str, str]:
    """Return the SHA-256 of each part, under names that all exports of a model share."""
    files = {entry.name: entry.sha256 for entry in manifest.files}
    named = {"graph": manifest.graph, "parameters": manifest.parameters}
    named |= {f"rows of table '{entry.name}'": entry.file for entry in manifest.tables}
    steps = [step.file for step in manifest.onnx.steps if step.file is not None]
    named |= {f"ONNX part {number}": file for number, file in enumerate(steps)}
    return {part: files[name] for part, name in named.items()}


def formats_of(manifest: ExportManifest) -> dict[str, str]:
    """Return the row format of each table, in the form of `Side.settings`."""
    return {f"rows of table '{entry.name}'": entry.format for entry in manifest.tables}


class CheckpointSide(Side):
    """A full checkpoint, or a delta together with its base."""

    role: Role = "training"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._checkpoint = Checkpoint.open(name)

    def dense(self) -> Arrays:
        """Return the parameters without optimizer state."""
        tensors = self._checkpoint.dense()
        return {
            name: tensor
            for name, tensor in tensors.items()
            if name.rpartition("/")[0] not in tensors
        }

    def tables(self) -> Mapping[str, TableFacts]:
        tables = self._checkpoint.manifest.tables
        return {entry.name: TableFacts(entry.dim) for entry in tables}

    def stream(self, table: str) -> Iterator[FoundRows]:
        for chunk in self._checkpoint.rows(table, columns=("values",)):
            yield FoundRows(chunk.keys, np.ones(len(chunk.keys), np.bool_), chunk.values)


class ServersSide(Side):
    """The tables on running servers. Dense parameters are not reported, since servers keep no
    names.

    tables: the names of the exported tables.
    """

    role: Role = "training"

    def __init__(
        self, name: str, endpoints: Sequence[str], tables: Sequence[str], *, timeout_s: float
    ) -> None:
        super().__init__(name)
        config = RemoteStoreConfig(
            timeout_s=timeout_s, connect_timeout_s=timeout_s, wire_dtype="float32"
        )
        self._store = RemoteStore(endpoints, name="verify", config=config)
        self._names = tables

    def tables(self) -> Mapping[str, TableFacts]:
        found = {}
        for name in self._names:
            try:
                info = self._store.info(name)
            except UnknownTableError:
                continue
            found[name] = TableFacts(info.dim, info.size)
        return found

    def stream(self, table: str) -> Iterator[FoundRows]:
        for rows in self._store.rows(table):
            yield FoundRows(rows.keys, np.ones(len(rows.keys), np.bool_), rows.values)

    def close(self) -> None:
        self._store.close()


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
