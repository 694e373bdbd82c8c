"""A model recorded as a graph by torch.export, pruned to what its targets need."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from sparsefleet.errors import ConfigError, ExportError, SparseFleetError
from sparsefleet.export.look_up_op import TracedStep
from sparsefleet.export.model_inputs import ModelInput, ModelInputs
from sparsefleet.export.targets import Targets

__all__ = ["RecordedGraph", "record"]

LOOK_UP = torch.ops.sparsefleet.look_up.default

MODEL_PREFIX = "model."
"""Of the names of parameters in a program, before those that they have in the model."""

_MESSAGE_LETTERS = 2000

Varying = Mapping[str, Sequence[int]]


class RecordedGraph:
    """The program, the inputs that it takes, in order, and the names of what it puts out."""

    def __init__(
        self, program: ExportedProgram, inputs: list[ModelInput], targets: list[str]
    ) -> None:
        self.program = program
        self.inputs = inputs
        self.targets = targets

    @property
    def lookups(self) -> list[fx.Node]:
        """Nodes of `sparsefleet::look_up`, in the order of the graph."""
        return [node for node in self.program.graph.nodes if node.target is LOOK_UP]


def record(
    model: nn.Module,
    inputs: ModelInputs,
    targets: Targets,
    *,
    feeds: Sequence[str] | None,
    varying: Varying | None,
) -> RecordedGraph:
    """Records `model`, which must be in evaluation, and prunes it.

    feeds: the inputs there will be; a target that needs another is an error.
    varying: dimensions of an input that may have another size in every call; (0,) by default.
    """
    names: list[str] = []

    def run(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with TracedStep():
            found = targets.run(lambda: inputs.call(model, tensors))
        names[:] = found
        return tuple(found.values())

    name, varying = type(model).__name__, varying or {}
    whole = _export(_Whole(model, run), inputs.items, varying, name).module()
    assert isinstance(whole, fx.GraphModule)
    _check_feeds(whole.graph, inputs.items, feeds, names)
    used = _used_inputs(whole.graph, inputs.items)
    part = _needed_part(whole, inputs.items, used)
    return RecordedGraph(_export(part, used, varying, name), used, names)


class _Whole(nn.Module):
    """The model as a module of flat tensors."""

    def __init__(self, model: nn.Module, run: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.model = model
        self._run = run

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self._run(tensors)


def _export(
    module: nn.Module, items: Sequence[ModelInput], varying: Varying, name: str
) -> ExportedProgram:
    tensors = tuple(tensor for item in items for tensor in item.tensors)
    shapes = tuple(_dynamic(item, tensor, varying) for item in items for tensor in item.tensors)
    is_star = isinstance(module, _Whole)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about itself
            return torch.export.export(
                module, tensors, dynamic_shapes=(shapes,) if is_star else shapes, strict=False
            )
    except SparseFleetError:
        raise
    except (RuntimeError, ValueError, TypeError, AssertionError, NotImplementedError) as error:
        raise ExportError(
            f"{name} cannot be recorded as a graph. Usual causes: Python that depends on values "
            "of tensors; an input whose first dimension is not the batch (say so with "
            f"varying={{'its name': ()}}). torch.export says: {str(error)[:_MESSAGE_LETTERS]}"
        ) from error


def _dynamic(item: ModelInput, tensor: Tensor, varying: Varying) -> dict[int, Any]:
    dims = varying.get(item.name, (0,))
    return {dim: Dim.DYNAMIC for dim in dims if dim < tensor.dim()}


def _placeholders(
    graph: fx.Graph, items: Sequence[ModelInput]
) -> list[tuple[ModelInput, list[fx.Node]]]:
    """The nodes that stand for the tensors of each input."""
    nodes = iter([node for node in graph.nodes if node.op == "placeholder"])
    return [(item, [next(nodes) for _ in item.tensors]) for item in items]


def _used_inputs(graph: fx.Graph, items: Sequence[ModelInput]) -> list[ModelInput]:
    """Inputs that the outputs depend on."""
    needed = _needed_nodes(graph.output_node())
    return [item for item, nodes in _placeholders(graph, items) if needed.intersection(nodes)]


def _needed_nodes(root: fx.Node) -> set[fx.Node]:
    """All nodes that `root` depends on, and itself."""
    waiting = [root]
    needed = set(waiting)
    while waiting:
        for node in waiting.pop().all_input_nodes:
            if node not in needed:
                needed.add(node)
                waiting.append(node)
    return needed


def _needed_part(
    whole: fx.GraphModule, items: Sequence[ModelInput], used: Sequence[ModelInput]
) -> fx.GraphModule:
    """The module without what its output does not need: inputs, parameters, lookups, checks."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for item, nodes in _placeholders(whole.graph, items):
        if item in used:
            for node in nodes:
                name = re.sub(r"\W", "_", item.name)
                copies[node] = graph.placeholder(f"input_{len(copies)}_{name}")
    output = whole.graph.output_node()
    needed = _needed_nodes(output)
    for node in whole.graph.nodes:
        if node in needed and node not in copies and node is not output:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = {}  # it tells where the model's source lies
    graph.output(fx.node.map_arg(tuple(output.args[0]), copies.__getitem__))  # type: ignore[arg-type]
    return fx.GraphModule(whole, graph)


def _check_feeds(
    graph: fx.Graph,
    items: Sequence[ModelInput],
    feeds: Sequence[str] | None,
    targets: Sequence[str],
) -> None:
    """Every target can be had from the feeds, and needs one."""
    known = [item.name for item in items]
    fed = set(known)
    if feeds is not None:
        wanted = [feeds] if isinstance(feeds, str) else list(feeds)
        fed = {name for name in known if name in wanted or name.split(".")[0] in wanted}
        for feed in wanted:
            if not any(name == feed or name.split(".")[0] == feed for name in known):
                raise ConfigError(
                    f"feed '{feed}' is no input of the model; it has {', '.join(known)}"
                )
    nodes = graph.output_node().args[0]
    for target, node in zip(targets, nodes, strict=True):  # type: ignore[arg-type]
        needed = _needed_nodes(node)
        names = [item.name for item, own in _placeholders(graph, items) if needed.intersection(own)]
        missing = [name for name in names if name not in fed]
        if missing:
            raise ConfigError(
                f"target '{target}' needs {', '.join(missing)}, which the feeds "
                f"({', '.join(feeds or ())}) lack: feed them, or choose another target"
            )
        if not names:
            raise ConfigError(f"target '{target}' depends on no input of the model")
