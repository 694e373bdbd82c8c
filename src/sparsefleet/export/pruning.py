"""What of a recorded graph its targets need."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from sparsefleet.errors import ConfigError
from sparsefleet.export.model_inputs import ModelInput

__all__ = ["Pruning"]

_SIZE_OF = torch.ops.aten.sym_size.int


class Pruning:
    """A graph of flat tensors, with the inputs that these are of, and the names of its outputs."""

    def __init__(
        self, whole: fx.GraphModule, items: Sequence[ModelInput], targets: Sequence[str]
    ) -> None:
        self._whole = whole
        nodes = iter([node for node in whole.graph.nodes if node.op == "placeholder"])
        self._inputs = [(item, [next(nodes) for _ in item.tensors]) for item in items]
        self._output = whole.graph.output_node()
        outputs: Any = self._output.args[0]
        self._targets: list[tuple[str, fx.Node]] = list(zip(targets, outputs, strict=True))
        self._ask_needed_inputs_for_sizes()

    @property
    def target_values(self) -> list[tuple[str, Tensor]]:
        """Targets with their stand-ins."""
        return [(name, node.meta["val"]) for name, node in self._targets]

    @cached_property
    def used_inputs(self) -> list[tuple[ModelInput, list[Tensor]]]:
        """Inputs that a target depends on, with their stand-ins."""
        needed = _needed_nodes(self._output)
        return [
            (item, [node.meta["val"] for node in nodes])
            for item, nodes in self._inputs
            if needed.intersection(nodes)
        ]

    def check_feeds(self, feeds: Sequence[str] | None) -> None:
        """Every target needs an input, and none that the feeds lack."""
        names = [item.name for item, _ in self._inputs]
        fed = names if feeds is None else _fed(names, [feeds] if isinstance(feeds, str) else feeds)
        for target, node in self._targets:
            needed = _needed_nodes(node)
            wanted = [item.name for item, nodes in self._inputs if needed.intersection(nodes)]
            missing = [name for name in wanted if name not in fed]
            if missing:
                raise ConfigError(
                    f"target '{target}' needs {', '.join(missing)}, which the feeds "
                    f"({', '.join(feeds or ())}) lack: feed them, or choose another target"
                )
            if not wanted:
                raise ConfigError(f"target '{target}' depends on no input of the model")

    def needed_part(self) -> fx.GraphModule:
        """The module without what no target needs: inputs, parameters, lookups, checks."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        used = [item for item, _ in self.used_inputs]
        for item, nodes in self._inputs:
            for node in nodes if item in used else ():
                name = re.sub(r"\W", "_", item.name)
                copies[node] = graph.placeholder(f"input_{len(copies)}_{name}")
        needed = _needed_nodes(self._output)
        for node in self._whole.graph.nodes:
            if node in needed and node not in copies and node is not self._output:
                copies[node] = graph.node_copy(node, copies.__getitem__)
                copies[node].meta = {}  # it tells where the model's source lies
        graph.output(tuple(copies[node] for _, node in self._targets))
        return fx.GraphModule(self._whole, graph)

    def _ask_needed_inputs_for_sizes(self) -> None:
        """Sizes are asked of any input that has them; let it be one that is needed anyway."""
        needed = _needed_nodes(self._output, through_sizes=False)
        owners: dict[str, tuple[fx.Node, int]] = {}
        for _, nodes in self._inputs:
            for node in needed.intersection(nodes):
                for dim, size in enumerate(node.meta["val"].shape):
                    owners.setdefault(str(size), (node, dim))
        for node in self._whole.graph.nodes:
            if _is_size_of_input(node) and node.args[0] not in needed:
                node.args = owners.get(str(node.meta["val"]), node.args)


def _is_size_of_input(node: fx.Node) -> bool:
    asked = node.args[0] if node.target is _SIZE_OF else None
    return isinstance(asked, fx.Node) and asked.op == "placeholder"


def _needed_nodes(root: fx.Node, *, through_sizes: bool = True) -> set[fx.Node]:
    """All nodes that `root` depends on, and itself.

    Without `through_sizes`, inputs of which only a size is asked do not count.
    """
    waiting = [root]
    needed = set(waiting)
    while waiting:
        node = waiting.pop()
        if not through_sizes and _is_size_of_input(node):
            continue
        for source in node.all_input_nodes:
            if source not in needed:
                needed.add(source)
                waiting.append(source)
    return needed


def _fed(names: Sequence[str], feeds: Sequence[str]) -> list[str]:
    """The inputs that the feeds name, by themselves or as parts of a nest."""
    for feed in feeds:
        if not any(feed in (name, name.split(".")[0]) for name in names):
            raise ConfigError(f"feed '{feed}' is no input of the model; it has {', '.join(names)}")
    return [name for name in names if name in feeds or name.split(".")[0] in feeds]
