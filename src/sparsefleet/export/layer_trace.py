"""What every operator of a recorded graph puts out, for those who look for where two models part.

Letters: B examples.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from sparsefleet.errors import FeedError
from sparsefleet.export.dense_shapes import MODEL_PREFIX
from sparsefleet.export.feeds import Arrays
from sparsefleet.export.look_up_op import looking_up
from sparsefleet.export.recorded_graph import LOOK_UP
from sparsefleet.export.row_source import Tables
from sparsefleet.export.schema import Schema

__all__ = ["Layer", "trace_layers"]


class Layer(NamedTuple):
    """One operator of a graph, and what came out of it."""

    name: str
    """In the graph: equal in all copies of one export."""
    what: str
    """As people say it: "linear(hidden.weight, hidden.bias)", "look_up(table 'ads')"."""
    values: NDArray[Any]


def trace_layers(
    graph: torch.nn.Module, schema: Schema, arrays: Arrays, tables: Tables
) -> list[Layer]:
    """The layers of a prediction in the order in which they are computed.

    graph: as `read_graph` gives it. arrays: as `check_feeds` gives them. Raises FeedError for
    arrays, or rows, that the graph cannot compute.
    """
    assert isinstance(graph, fx.GraphModule)
    names = [name for item in schema.inputs for name in item.arrays]
    tensors = [torch.from_numpy(arrays[name].copy()) for name in names]
    run = _Recording(graph)
    try:
        with torch.no_grad(), looking_up(tables):
            run.run(*tensors)
    except (RuntimeError, IndexError) as error:
        said = str(error).partition("\n")[0]
        raise FeedError(f"the model cannot compute these inputs: {said}") from error
    return run.layers


class _Recording(fx.Interpreter):
    """Runs a graph operator by operator, and keeps what each puts out."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.layers: list[Layer] = []

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op == "call_function" and isinstance(value, Tensor):
            self.layers.append(Layer(n.name, _said(n), value.numpy().copy()))
        return value


def _said(node: fx.Node) -> str:
    if node.target is LOOK_UP:
        return f"look_up(table '{node.args[1]}')"
    operator = str(node.target).removeprefix("aten.").split(".")[0]
    sources = [str(n.target) for n in node.all_input_nodes if n.op == "get_attr"]
    return f"{operator}({', '.join(name.removeprefix(MODEL_PREFIX) for name in sources)})"
