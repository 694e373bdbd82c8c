"""An ONNX graph cut into parts at operators that are carried out elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import onnx

__all__ = ["OnnxCut", "OnnxLookup", "OnnxPart"]


class OnnxPart(NamedTuple):
    """A graph of its own, from some named arrays to others."""

    model: onnx.ModelProto
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class OnnxLookup(NamedTuple):
    """Rows of the array `ids` become the array `rows`."""

    table: str
    ids: str
    rows: str
    padding_id: int | None
    unknown: Literal["zeros", "initial"]


class OnnxCut:
    """The steps of a prediction: parts and lookups, each after what it needs.

    Lookups whose ids can be had are carried out as early as that; the last step is the part
    that computes the outputs of the model.
    """

    def __init__(self, model: onnx.ModelProto, domain: str) -> None:
        self._model = model
        self._domain = domain
        graph = model.graph
        self._nodes = list(graph.node)
        self._producer = {name: at for at, node in enumerate(self._nodes) for name in node.output}
        self._lookups = {n.output[0]: _lookup(n) for n in self._nodes if n.domain == domain}
        self._given = {value.name for value in graph.input}
        self.steps: list[OnnxPart | OnnxLookup] = []
        left = list(self._lookups.values())
        while left:
            ready = [item for item in left if self._rows_before(item.ids) <= self._given]
            ids = dict.fromkeys(item.ids for item in ready if item.ids not in self._given)
            if ids:
                self.steps.append(self._part(ids))
            self.steps += ready
            self._given.update(item.rows for item in ready)
            left = [item for item in left if item not in ready]
        outputs = [value.name for value in graph.output if value.name not in self._given]
        if outputs:
            self.steps.append(self._part(outputs))

    def _needed(self, names: Iterable[str]) -> tuple[set[int], set[str]]:
        """Nodes, by place, between what is given and these arrays; and what they start from."""
        waiting, nodes, sources = list(names), set[int](), set[str]()
        while waiting:
            name = waiting.pop()
            at = self._producer.get(name)
            if name in self._given or at is None:
                sources.add(name)
            elif at not in nodes:
                nodes.add(at)
                waiting += [source for source in self._nodes[at].input if source]
        return nodes, sources

    def _rows_before(self, name: str) -> set[str]:
        """Rows that an array depends on."""
        nodes, sources = self._needed([name])
        within = {output for at in nodes for output in self._nodes[at].output}
        return (sources | within) & self._lookups.keys()

    def _part(self, names: Iterable[str]) -> OnnxPart:
        import onnx
        from onnx import helper

        graph = self._model.graph
        outputs = tuple(names)
        nodes, sources = self._needed(outputs)
        described = {v.name: v for v in [*graph.input, *graph.output, *graph.value_info]}
        initializers = [item for item in graph.initializer if item.name in sources]
        held = {item.name for item in initializers}
        inputs = tuple(name for name in described if name in sources - held)
        made = helper.make_graph(
            [node for at, node in enumerate(self._nodes) if at in nodes],
            "part",
            [described[name] for name in inputs],
            [described[name] for name in outputs],
            initializers,
        )
        model = helper.make_model(
            made,
            ir_version=self._model.ir_version,
            opset_imports=[i for i in self._model.opset_import if i.domain != self._domain],
            functions=self._model.functions,
            producer_name="sparsefleet",
        )
        onnx.checker.check_model(model)
        return OnnxPart(model, inputs, outputs)


def _lookup(node: onnx.NodeProto) -> OnnxLookup:
    settings = {item.name: item for item in node.attribute}
    padding = settings.get("padding_id")
    return OnnxLookup(
        table=settings["table"].s.decode("utf-8"),
        ids=node.input[0],
        rows=node.output[0],
        padding_id=None if padding is None else padding.i,
        unknown="initial" if settings["unknown"].s == b"initial" else "zeros",
    )
