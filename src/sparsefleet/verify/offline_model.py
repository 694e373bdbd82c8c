"""The export under test, opened for all that the gate asks of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import fx

from sparsefleet.errors import CorruptFileError
from sparsefleet.export.feeds import Arrays
from sparsefleet.export.golden import Golden, read_golden
from sparsefleet.export.graph_file import read_graph
from sparsefleet.export.layer_trace import trace_layers
from sparsefleet.export.opened_export import read_manifest
from sparsefleet.export.recorded_graph import LOOK_UP, MODEL_PREFIX
from sparsefleet.export.row_file import RowFile, open_tables
from sparsefleet.export.row_source import Tables
from sparsefleet.export.torch_engine import TorchEngine
from sparsefleet.verify.examples import Examples
from sparsefleet.verify.side import Trace

__all__ = ["LookupLayer", "OfflineModel", "joined"]

_BATCH = 1024


class LookupLayer(NamedTuple):
    """A lookup as a layer of the graph; `dim` is the width of its rows."""

    name: str
    what: str
    dim: int


class OfflineModel:
    """An export: its files are read when they are asked for, so that one may be damaged."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self.manifest = read_manifest(directory)
        self.schema = self.manifest.schema

    @property
    def name(self) -> str:
        return str(self.directory)

    @cached_property
    def tables(self) -> dict[str, RowFile]:
        return open_tables(self.directory, self.manifest.tables)

    @cached_property
    def graph(self) -> fx.GraphModule:
        graph = read_graph(self.directory / self.manifest.graph)
        assert isinstance(graph, fx.GraphModule)
        return graph

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
    def graph_parameters(self) -> dict[str, torch.Tensor]:
        """The same, as the graph has them."""
        state = self.graph.state_dict()
        return {name.removeprefix(MODEL_PREFIX): tensor for name, tensor in state.items()}

    @property
    def lookup_layers(self) -> list[LookupLayer]:
        """The lookups of the graph, in order."""
        nodes = [node for node in self.graph.graph.nodes if node.target is LOOK_UP]
        return [LookupLayer(n.name, f"look_up(table '{n.args[1]}')", int(n.args[2])) for n in nodes]

    def predict(self, examples: Examples, tables: Tables | None = None) -> Arrays:
        """Targets of all examples, by the graph of torch; `tables`: other rows than its own."""
        engine = TorchEngine(self.graph, self.schema)
        rows = self.tables if tables is None else tables
        self._require_feeds()
        return joined([engine.predict(part, rows) for part in examples.batches(_BATCH)])

    def trace(self, arrays: Arrays, tables: Tables | None = None) -> Trace:
        """A prediction from the inside."""
        rows = self.tables if tables is None else tables
        self._require_feeds()
        return Trace(arrays, trace_layers(self.graph, self.schema, arrays, rows))

    def with_dense(self, dense: Mapping[str, torch.Tensor]) -> OfflineModel:
        """The same export with other dense parameters, as far as they are given and fit."""
        other = OfflineModel(self.directory)
        own = self.graph_parameters
        state = {
            MODEL_PREFIX + name: tensor
            for name, tensor in dense.items()
            if name in own and own[name].shape == tensor.shape
        }
        other.graph.load_state_dict(state, strict=False)
        return other

    def _require_feeds(self) -> None:
        """Torch would say it in words about Python."""
        takes = sum(node.op == "placeholder" for node in self.graph.graph.nodes)
        declared = sum(len(item.arrays) for item in self.schema.inputs)
        if takes != declared:
            raise CorruptFileError(
                f"{self.directory}: the graph takes {takes} arrays, the manifest declares {declared}"
            )


def joined(parts: list[Arrays]) -> Arrays:
    """The targets of several batches as one."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
