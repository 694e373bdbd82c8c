"""The export under test, with its updates.

In shapes, U is the number of distinct keys, N the number of rows, D the row width.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import fx

from sparsefleet.errors import CorruptFileError, StoreUnavailableError
from sparsefleet.serving.export.export_directory import read_manifest
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.export.golden import Golden, read_golden
from sparsefleet.serving.export.graph_file import read_graph
from sparsefleet.serving.export.keyed_rows import MODEL_PREFIX, KeyedRows, Tables
from sparsefleet.serving.export.manifest import ExportManifest
from sparsefleet.serving.export.recorded_graph import LOOK_UP
from sparsefleet.serving.export.row_file import RowFile, open_tables
from sparsefleet.serving.export.torch_engine import TorchEngine, trace_layers
from sparsefleet.serving.updates import ModelSnapshot, UpdateReader, open_log
from sparsefleet.serving.updates.update import TableOverlay
from sparsefleet.serving.verify.examples import Examples
from sparsefleet.serving.verify.side import Trace
from sparsefleet.store.arrays import Floats, Keys

__all__ = [
    "LookupLayer",
    "ModelTable",
    "OfflineModel",
    "UpdatedTable",
    "dense_of",
    "joined",
    "snapshot_of",
    "with_updates",
]


class UpdatedTable(KeyedRows):
    """An export's rows with updates applied."""

    def __init__(self, file: RowFile, overlay: TableOverlay) -> None:
        super().__init__(file.entry, file.initial)
        self._file = file
        self._overlay = overlay
        changes = overlay.changes()
        stay = file.keys[~np.isin(file.keys, changes.removed)]
        self.keys: Keys = np.union1d(stay, changes.keys)
        """All keys in ascending order: uint64[N]."""

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        """Implement `KeyedRows.find`: look in the updated rows first, then in the file."""
        rows, known = self._file.find(keys)
        self._overlay.find(keys, rows, known)
        return rows, known


ModelTable = RowFile | UpdatedTable


def snapshot_of(updates: str | os.PathLike[str], manifest: ExportManifest) -> ModelSnapshot | None:
    """Return the newest snapshot that results from an export's updates, or None if there are none.

    Raises StoreUnavailableError if an update is missing, damaged or cannot be read.
    """
    log = open_log(updates, manifest.digest)
    try:
        reader = UpdateReader(log, manifest.digest, manifest.tables)
        reader.catch_up()
        if reader.problem is not None:
            raise StoreUnavailableError(f"updates from {os.fspath(updates)}: {reader.problem}")
        return reader.snapshot
    finally:
        log.close()


def with_updates(
    tables: Mapping[str, RowFile], snapshot: ModelSnapshot | None
) -> dict[str, ModelTable]:
    """Return the tables of an export with the changes in a snapshot."""
    found: dict[str, ModelTable] = {}
    for name, file in tables.items():
        overlay = TableOverlay() if snapshot is None else snapshot.rows.table(name)
        found[name] = UpdatedTable(file, overlay) if len(overlay) else file
    return found


_BATCH = 1024


class LookupLayer(NamedTuple):
    """A lookup as a layer of the graph; `dim` is the row width."""

    name: str
    what: str
    dim: int


class OfflineModel:
    """An export whose files are read on first use, so that some checks can run even if a file is
    damaged.

    updates: where a trainer publishes updates, which are applied to rows and dense parameters.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        updates: str | os.PathLike[str] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self.manifest = read_manifest(directory)
        self.schema = self.manifest.schema
        self._updates = updates

    @property
    def name(self) -> str:
        return str(self.directory)

    @cached_property
    def snapshot(self) -> ModelSnapshot | None:
        """The newest snapshot, or None if there are no updates."""
        return None if self._updates is None else snapshot_of(self._updates, self.manifest)

    def catch_up(self) -> None:
        """Apply updates published since the last call."""
        for name in ("snapshot", "tables", "graph"):
            self.__dict__.pop(name, None)

    @cached_property
    def files(self) -> dict[str, RowFile]:
        """The rows as exported, without updates."""
        return open_tables(self.directory, self.manifest.tables)

    @cached_property
    def tables(self) -> dict[str, ModelTable]:
        """The rows with updates applied."""
        return with_updates(self.files, self.snapshot)

    @cached_property
    def exported_graph(self) -> fx.GraphModule:
        """The graph as exported, without updates."""
        graph = read_graph(self.directory / self.manifest.graph)
        assert isinstance(graph, fx.GraphModule)
        return graph

    @cached_property
    def graph(self) -> fx.GraphModule:
        """The graph with updated dense parameters."""
        if self.snapshot is None:
            return self.exported_graph
        return self._graph_with(self.exported_graph, self.snapshot.dense.arrays)

    @cached_property
    def golden(self) -> Golden:
        return read_golden(self.directory / self.manifest.golden.file, self.schema)

    @cached_property
    def parameters(self) -> Arrays:
        """Dense parameters and buffers by name, from the safetensors file."""
        path = self.directory / self.manifest.parameters
        try:
            return dict(load_file(path))
        except (OSError, ValueError) as error:
            raise CorruptFileError(f"{path} is not a parameter file: {error}") from error

    @property
    def dense(self) -> Arrays:
        """Return dense parameters and buffers by name, from the graph."""
        return dense_of(self.graph)

    @property
    def lookup_layers(self) -> list[LookupLayer]:
        """Return the lookups of the graph in order."""
        nodes = [node for node in self.graph.graph.nodes if node.target is LOOK_UP]
        return [LookupLayer(n.name, f"look_up(table '{n.args[1]}')", int(n.args[2])) for n in nodes]

    def predict(self, examples: Examples, tables: Tables | None = None) -> Arrays:
        """Return the targets of all examples, computed by torch; `tables` replaces the rows."""
        self._require_feeds()
        engine = TorchEngine(self.graph, self.schema)
        rows = self.tables if tables is None else tables
        return joined([engine.predict(part, rows) for part in examples.batches(_BATCH)])

    def trace(self, arrays: Arrays, tables: Tables | None = None) -> Trace:
        """Return the intermediate values of a prediction."""
        self._require_feeds()
        rows = self.tables if tables is None else tables
        return Trace(arrays, trace_layers(self.graph, self.schema, arrays, rows))

    def with_dense(self, dense: Arrays) -> OfflineModel:
        """Return a copy of the model with these dense parameters.

        Parameters whose name or shape does not match are ignored.
        """
        other = copy.copy(self)
        other.__dict__["graph"] = self._graph_with(self.graph, dense)
        return other

    def _graph_with(
        self, graph: fx.GraphModule, dense: Mapping[str, NDArray[Any]]
    ) -> fx.GraphModule:
        arrays = dense_of(graph)
        arrays |= {n: x for n, x in dense.items() if n in arrays and x.shape == arrays[n].shape}
        found = TorchEngine(graph, self.schema).with_dense(arrays).graph
        assert isinstance(found, fx.GraphModule)
        return found

    def as_exported(self) -> OfflineModel:
        """Return the model without updates."""
        return self if self.snapshot is None else OfflineModel(self.directory)

    def _require_feeds(self) -> None:
        """Raise a clearer error than torch would if the graph and the manifest disagree."""
        takes = sum(node.op == "placeholder" for node in self.graph.graph.nodes)
        declared = sum(len(item.arrays) for item in self.schema.inputs)
        if takes != declared:
            raise CorruptFileError(
                f"{self.directory}: the graph takes {takes} arrays, but the manifest declares "
                f"{declared}"
            )


def dense_of(graph: fx.GraphModule) -> Arrays:
    """Return a graph's dense parameters and buffers by their model names."""
    state = graph.state_dict()
    return {name.removeprefix(MODEL_PREFIX): tensor.numpy() for name, tensor in state.items()}


def joined(parts: list[Arrays]) -> Arrays:
    """Concatenate the targets of several batches."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
