"""Another directory with an export: a copy that was deployed, or the one before."""

from __future__ import annotations

from collections.abc import Mapping

from sparsefleet.export.feeds import Arrays
from sparsefleet.export.manifest import Manifest
from sparsefleet.export.schema import Schema
from sparsefleet.export.torch_engine import TorchEngine
from sparsefleet.store.arrays import Keys
from sparsefleet.verify.offline_model import OfflineModel
from sparsefleet.verify.side import FoundRows, Side, TableFacts, Trace

__all__ = ["ExportSide", "checksums_of", "formats_of"]


class ExportSide(Side):
    """An export that should be the one under test."""

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
        """As the graph has them: that is what predicts."""
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


def checksums_of(manifest: Manifest) -> dict[str, str]:
    """SHA-256 of the parts of an export, by names that are equal in all exports of a model."""
    files = {entry.name: entry.sha256 for entry in manifest.files}
    named = {"graph": manifest.graph, "parameters": manifest.parameters}
    named |= {f"rows of table '{entry.name}'": entry.file for entry in manifest.tables}
    steps = [step.file for step in manifest.onnx.steps if step.file is not None]
    named |= {f"ONNX part {number}": file for number, file in enumerate(steps)}
    return {part: files[name] for part, name in named.items()}


def formats_of(manifest: Manifest) -> dict[str, str]:
    """In which precision rows are, as settings."""
    return {f"rows of table '{entry.name}'": entry.format for entry in manifest.tables}
