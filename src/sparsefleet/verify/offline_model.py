"""The export under test, opened for all that the gate asks of it."""

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

from sparsefleet.errors import CorruptFileError
from sparsefleet.export.dense_shapes import MODEL_PREFIX
from sparsefleet.export.feeds import Arrays
from sparsefleet.export.golden import Golden, read_golden
from sparsefleet.export.graph_file import read_graph
from sparsefleet.export.layer_trace import trace_layers
from sparsefleet.export.opened_export import read_manifest
from sparsefleet.export.recorded_graph import LOOK_UP
from sparsefleet.export.row_file import RowFile, open_tables
from sparsefleet.export.row_source import Tables
from sparsefleet.export.torch_engine import TorchEngine
from sparsefleet.updates import ModelMoment
from sparsefleet.verify.examples import Examples
from sparsefleet.verify.model_table import ModelTable, moment_of, with_updates
from sparsefleet.verify.side import Trace

__all__ = ["LookupLayer", "OfflineModel", "dense_of", "joined"]

_BATCH = 1024


class LookupLayer(NamedTuple):
    """A lookup as a layer of the graph; `dim` is the width of its rows."""

    name: str
    what: str
    dim: int


class OfflineModel:
    """An export: its files are read when they are asked for, so that one may be damaged.

    updates: where a trainer publishes changes of it; they are applied, dense parameters too.
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
    def moment(self) -> ModelMoment | None:
        """Where updates have led; None: the export as it was written."""
        return None if self._updates is None else moment_of(self._updates, self.manifest)

    def catch_up(self) -> None:
        """Takes up updates that have come since."""
        for name in ("moment", "tables", "graph"):
            self.__dict__.pop(name, None)

    @cached_property
    def files(self) -> dict[str, RowFile]:
        """Rows as they were exported."""
        return open_tables(self.directory, self.manifest.tables)

    @cached_property
    def tables(self) -> dict[str, ModelTable]:
        """Rows as updates have left them."""
        return with_updates(self.files, self.moment)

    @cached_property
    def exported_graph(self) -> fx.GraphModule:
        """The graph as it was exported."""
        graph = read_graph(self.directory / self.manifest.graph)
        assert isinstance(graph, fx.GraphModule)
        return graph

    @cached_property
    def graph(self) -> fx.GraphModule:
        """The graph with the dense parameters that updates have left."""
        if self.moment is None:
            return self.exported_graph
        return self._graph_with(self.exported_graph, self.moment.dense.arrays)

    @cached_property
    def golden(self) -> Golden:
        return read_golden(self.directory / self.manifest.golden.file, self.schema)

    @cached_property
    def parameters(self) -> Arrays:
        """Dense parameters and buffers by name, as the file for people has them."""
        path = self.directory / self.manifest.parameters
        try:
            return dict(load_file(path))
        except (OSError, ValueError) as error:
            raise CorruptFileError(f"{path} is no file of parameters: {error}") from error

    @property
    def dense(self) -> Arrays:
        """The same as they are in the graph."""
        return dense_of(self.graph)

    @property
    def lookup_layers(self) -> list[LookupLayer]:
        """The lookups of the graph, in order."""
        nodes = [node for node in self.graph.graph.nodes if node.target is LOOK_UP]
        return [LookupLayer(n.name, f"look_up(table '{n.args[1]}')", int(n.args[2])) for n in nodes]

    def predict(self, examples: Examples, tables: Tables | None = None) -> Arrays:
        """Targets of all examples, by the graph of torch; `tables`: other rows than its own."""
        self._require_feeds()
        engine = TorchEngine(self.graph, self.schema)
        rows = self.tables if tables is None else tables
        return joined([engine.predict(part, rows) for part in examples.batches(_BATCH)])

    def trace(self, arrays: Arrays, tables: Tables | None = None) -> Trace:
        """A prediction from the inside."""
        self._require_feeds()
        rows = self.tables if tables is None else tables
        return Trace(arrays, trace_layers(self.graph, self.schema, arrays, rows))

    def with_dense(self, dense: Arrays) -> OfflineModel:
        """The same with other dense parameters, as far as they are given and fit."""
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
        """The same without updates."""
        return self if self.moment is None else OfflineModel(self.directory)

    def _require_feeds(self) -> None:
        """Torch would say it in words about Python."""
        takes = sum(node.op == "placeholder" for node in self.graph.graph.nodes)
        declared = sum(len(item.arrays) for item in self.schema.inputs)
        if takes != declared:
            raise CorruptFileError(
                f"{self.directory}: the graph takes {takes} arrays, but the manifest declares "
                f"{declared}"
            )


def dense_of(graph: fx.GraphModule) -> Arrays:
    """Dense parameters and buffers of a graph, by their names in the model."""
    state = graph.state_dict()
    return {name.removeprefix(MODEL_PREFIX): tensor.numpy() for name, tensor in state.items()}


def joined(parts: list[Arrays]) -> Arrays:
    """The targets of several batches as one."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
