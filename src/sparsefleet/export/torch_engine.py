"""Predictions by the graph that torch recorded."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from sparsefleet.errors import FeedError
from sparsefleet.export.dense_shapes import MODEL_PREFIX, require_same_shapes
from sparsefleet.export.feeds import Arrays
from sparsefleet.export.look_up_op import looking_up
from sparsefleet.export.row_source import Tables
from sparsefleet.export.schema import Schema

__all__ = ["TorchEngine"]


class TorchEngine:
    """Runs the graph. Thread-safe."""

    def __init__(self, graph: fx.GraphModule, schema: Schema) -> None:
        self._graph = graph
        self._schema = schema
        self._inputs = [name for item in schema.inputs for name in item.arrays]
        self._targets = [target.name for target in schema.targets]

    @property
    def graph(self) -> torch.nn.Module:
        """What it runs."""
        return self._graph

    def run(self, tensors: Mapping[str, Tensor], tables: Tables) -> dict[str, Tensor]:
        """Targets of inputs, by their names in the graph, with these rows."""
        with torch.no_grad(), looking_up(tables):
            outputs = self._graph(*(tensors[name] for name in self._inputs))
        return dict(zip(self._targets, outputs, strict=True))

    def with_dense(self, arrays: Mapping[str, NDArray[Any]]) -> TorchEngine:
        """An engine with other parameters and buffers, by their names in the model.

        Raises CheckpointMismatchError unless they are those of the graph.
        """
        own = {name.removeprefix(MODEL_PREFIX): t for name, t in self._graph.state_dict().items()}
        require_same_shapes({name: tuple(t.shape) for name, t in own.items()}, arrays)
        attributes: dict[str, Any] = {}
        for node in self._graph.graph.nodes:
            if node.op == "get_attr":
                old = operator.attrgetter(node.target)(self._graph)
                name = node.target.removeprefix(MODEL_PREFIX)
                new = torch.from_numpy(np.array(arrays[name])).to(old) if name in own else old
                attributes[node.target] = new
        return TorchEngine(fx.GraphModule(attributes, self._graph.graph), self._schema)

    def predict(self, arrays: Arrays, tables: Tables) -> Arrays:
        """The same with arrays."""
        tensors = {name: torch.from_numpy(_writable(array)) for name, array in arrays.items()}
        try:
            found = self.run(tensors, tables)
        except (RuntimeError, IndexError) as error:
            raise FeedError(f"the model cannot compute these inputs: {error}") from error
        return {name: tensor.numpy() for name, tensor in found.items()}


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    """Torch shares memory only with arrays that it could write to."""
    return array if array.flags.writeable else array.copy()
