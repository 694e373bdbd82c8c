"""What happened on the way to a prediction: the rows looked up, and what each layer put out."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsefleet.errors import SparseFleetError
from sparsefleet.export.feeds import Arrays
from sparsefleet.export.row_source import Tables
from sparsefleet.export.schema import Schema
from sparsefleet.serve.http.inspection import inspect
from sparsefleet.serve.http.merging import BatchLayout
from sparsefleet.serve.moment_tables import dense_of
from sparsefleet.serve.predictor import Predictor

if TYPE_CHECKING:
    from sparsefleet.export.torch_engine import TorchEngine

__all__ = ["trace"]

_MOST_EXAMPLES = 8


def trace(
    predictor: Predictor, layout: BatchLayout, arrays: Arrays, tables: Tables
) -> dict[str, Any]:
    """Of the first examples, with these rows: their number, the arrays as the model got them, the
    lookups, and what each layer of the recorded graph puts out.

    The graph is run by torch, whatever the engine of predictions.
    """
    count = min(layout.count(arrays), _MOST_EXAMPLES)
    first = layout.part(arrays, count)
    found: dict[str, Any] = {
        "examples": count,
        "inputs": {name: array.tolist() for name, array in first.items()},
        "lookups": [each.as_json() for each in inspect(predictor, first, tables).lookups],
    }
    try:
        found["layers"] = _layers(predictor, first, tables)
    except (SparseFleetError, OSError) as error:  # as of an export written over
        found["layers_missing"] = str(error)
    return found


def _layers(predictor: Predictor, arrays: Arrays, tables: Tables) -> list[dict[str, Any]]:
    from sparsefleet.export.layer_trace import trace_layers

    engine = _engine(predictor.directory / predictor.manifest.graph, predictor.schema)
    dense = dense_of(tables)
    graph = (engine if dense is None else engine.with_dense(dense.arrays)).graph
    return [
        {
            "name": layer.name,
            "what": layer.what,
            "dtype": str(layer.values.dtype),
            "shape": list(layer.values.shape),
            "values": _finite(layer.values.reshape(-1).tolist()),
        }
        for layer in trace_layers(graph, predictor.schema, arrays, tables)
        if not layer.what.startswith("look_up(")  # these are among the lookups
    ]


@functools.lru_cache(maxsize=2)
def _engine(path: Path, schema: Schema) -> TorchEngine:
    from sparsefleet.export.graph_file import read_graph
    from sparsefleet.export.torch_engine import TorchEngine

    return TorchEngine(read_graph(path), schema)


def _finite(values: list[Any]) -> list[Any]:
    """What JSON has no number for becomes null."""
    return [
        None if isinstance(value, float) and not math.isfinite(value) else value for value in values
    ]
