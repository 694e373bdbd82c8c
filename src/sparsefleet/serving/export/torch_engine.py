"""Run the recorded graph with torch, as an engine, as a module, or layer by layer."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from sparsefleet.errors import FeedError
from sparsefleet.serving.export.export_directory import Verify, open_export
from sparsefleet.serving.export.feeds import Arrays, check_feeds
from sparsefleet.serving.export.graph_file import read_graph
from sparsefleet.serving.export.keyed_rows import (
    CONSTANT_PREFIX,
    MODEL_PREFIX,
    Tables,
    dense_tensors,
    require_same_shapes,
)
from sparsefleet.serving.export.manifest import ExportManifest, Schema
from sparsefleet.serving.export.recorded_graph import LOOK_UP, looking_up
from sparsefleet.serving.export.row_file import open_tables

__all__ = ["InferenceModel", "Layer", "TorchEngine", "load_inference_model", "trace_layers"]


class TorchEngine:
    """Runs the recorded graph with torch. Thread-safe."""

    def __init__(self, graph: fx.GraphModule, schema: Schema) -> None:
        self._graph = graph
        self._schema = schema
        self._inputs = [name for item in schema.inputs for name in item.arrays]
        self._targets = [target.name for target in schema.targets]

    @property
    def graph(self) -> torch.nn.Module:
        """Return the graph that this engine runs."""
        return self._graph

    def run(self, tensors: Mapping[str, Tensor], tables: Tables) -> dict[str, Tensor]:
        """Return the targets for these input tensors and rows, keyed by graph name."""
        with torch.no_grad(), looking_up(tables):
            outputs = self._graph(*(tensors[name] for name in self._inputs))
        return dict(zip(self._targets, outputs, strict=True))

    def with_dense(self, arrays: Mapping[str, NDArray[Any]]) -> TorchEngine:
        """Return an engine with different parameters and buffers, keyed by their model names.

        Raises CheckpointMismatchError unless the tensors match the graph.
        """
        own = dense_tensors(self._graph.state_dict())
        require_same_shapes({name: tuple(t.shape) for name, t in own.items()}, arrays)
        attributes: dict[str, Any] = {}
        for node in self._graph.graph.nodes:
            if node.op == "get_attr":
                old = operator.attrgetter(node.target)(self._graph)
                name = node.target.removeprefix(MODEL_PREFIX)
                is_dense = name in own and not node.target.startswith(CONSTANT_PREFIX)
                new = torch.from_numpy(np.array(arrays[name])).to(old) if is_dense else old
                attributes[node.target] = new
        return TorchEngine(fx.GraphModule(attributes, self._graph.graph), self._schema)

    def predict(self, arrays: Arrays, tables: Tables) -> Arrays:
        """Return the targets for input arrays, as arrays. Otherwise the same as `run`."""
        tensors = {name: torch.from_numpy(_writable(array)) for name, array in arrays.items()}
        try:
            found = self.run(tensors, tables)
        except (RuntimeError, IndexError) as error:
            raise FeedError(f"the model cannot process these inputs: {error}") from error
        return {name: tensor.numpy() for name, tensor in found.items()}


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    """Return a writable array, because torch shares memory only with writable arrays."""
    return array if array.flags.writeable else array.copy()


class InferenceModel(nn.Module):
    """A module for predictions only, called with the same arguments as the original model.

    Returns the target, or a dict of targets by name if there are several. Thread-safe.
    """

    def __init__(self, directory: Path, manifest: ExportManifest) -> None:
        super().__init__()
        self.manifest = manifest
        """The manifest of the export; `manifest.schema` lists inputs and targets."""
        self._tables = open_tables(directory, manifest.tables)
        graph = read_graph(directory / manifest.graph)
        self._engine = TorchEngine(graph, manifest.schema)
        self.eval()

    def forward(self, *inputs: Any, **named: Any) -> Tensor | dict[str, Tensor]:
        """Predict from positional or named inputs. Do not pass inputs that no target needs."""
        schema = self.manifest.schema
        both = sorted(set(schema.places[: len(inputs)]) & named.keys())
        if both:
            raise FeedError(f"inputs given both by position and by name: {', '.join(both)}")
        if len(inputs) > len(schema.places):
            wanted = f"{len(schema.places)}: {', '.join(schema.places)}"
            raise FeedError(f"got {len(inputs)} positional inputs, expected {wanted}")
        given = dict(zip(schema.places, inputs, strict=False)) | named
        arrays = check_feeds(schema, given)
        tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}
        found = self._engine.run(tensors, self._tables)
        return next(iter(found.values())) if len(found) == 1 else found

    def extra_repr(self) -> str:
        schema = self.manifest.schema
        return "\n".join([*map(str, schema.inputs), "->", *map(str, schema.targets)])


def load_inference_model(
    directory: str | os.PathLike[str], *, verify: Verify = True
) -> InferenceModel:
    """Load a model written by `save_inference_model`. Rows stay in their files.

    verify: see `sparsefleet.Predictor`.

    >>> import tempfile
    >>> from sparsefleet.serving.export import save_inference_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manifest = save_inference_model(folder, nn.Linear(2, 1), torch.ones(4, 2), onnx=False)
    ...     load_inference_model(folder)(torch.zeros(3, 2)).shape
    torch.Size([3, 1])
    """
    return open_export(directory, verify, InferenceModel)


class Layer(NamedTuple):
    """One operator of a graph, with its output."""

    name: str
    """Name in the graph, identical in all copies of one export."""
    what: str
    """Readable form: "linear(hidden.weight, hidden.bias)", "look_up(table 'ads')"."""
    values: NDArray[Any]


def trace_layers(
    graph: torch.nn.Module, schema: Schema, arrays: Arrays, tables: Tables
) -> list[Layer]:
    """Return a prediction's layers in the order they are computed.

    graph: as returned by `read_graph`. arrays: as returned by `check_feeds`. Raises FeedError for
    arrays or rows that the graph cannot process.
    """
    assert isinstance(graph, fx.GraphModule)
    names = [name for item in schema.inputs for name in item.arrays]
    tensors = [torch.from_numpy(arrays[name].copy()) for name in names]
    run = _Recording(graph)
    try:
        with torch.no_grad(), looking_up(tables):
            run.run(*tensors)
    except (RuntimeError, IndexError) as error:
        text = str(error).partition("\n")[0]
        raise FeedError(f"the model cannot process these inputs: {text}") from error
    return run.layers


class _Recording(fx.Interpreter):
    """Runs a graph operator by operator and keeps every output."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.layers: list[Layer] = []

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op == "call_function" and isinstance(value, Tensor):
            self.layers.append(Layer(n.name, _described(n), value.numpy().copy()))
        return value


def _described(node: fx.Node) -> str:
    if node.target is LOOK_UP:
        return f"look_up(table '{node.args[1]}')"
    operator = str(node.target).removeprefix("aten.").split(".")[0]
    sources = [str(n.target) for n in node.all_input_nodes if n.op == "get_attr"]
    names = [name.removeprefix(MODEL_PREFIX).removeprefix(CONSTANT_PREFIX) for name in sources]
    return f"{operator}({', '.join(names)})"
