"""Copies of a model to compare with an export: other exports, checkpoints, a job's servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.errors import UnknownTableError
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.export.manifest import ExportManifest, Schema
from sparsefleet.serving.export.torch_engine import TorchEngine
from sparsefleet.serving.verify.offline_model import OfflineModel
from sparsefleet.serving.verify.side import FoundRows, Role, Side, TableFacts, Trace
from sparsefleet.store import RemoteStore, RemoteStoreConfig
from sparsefleet.store.arrays import Keys

__all__ = ["CheckpointSide", "ExportSide", "ServersSide", "checksums_of", "formats_of"]


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
