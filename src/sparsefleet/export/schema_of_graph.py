"""The schema of a recorded graph: dimensions get names, lookups are listed."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from sparsefleet.export.recorded_graph import RecordedGraph
from sparsefleet.export.schema import InputSchema, LookupSchema, Schema, Shape, TargetSchema

__all__ = ["schema_of"]


def schema_of(recorded: RecordedGraph) -> Schema:
    """What the graph takes, looks up and puts out."""
    signature = recorded.program.graph_signature
    nodes = {node.name: node for node in recorded.program.graph.nodes}
    outputs = [nodes[str(name)] for name in signature.user_outputs]
    names = _DimensionNames(outputs)
    placeholders = iter([nodes[str(name)] for name in signature.user_inputs])
    array_of: dict[fx.Node, str] = {}
    inputs = []
    for item in recorded.inputs:
        values = next(placeholders)
        offsets = next(placeholders) if item.is_ragged else None
        described = InputSchema(
            name=item.name,
            dtype=_dtype(values),
            shape=names.shape(values, item.name),
            offsets=None if offsets is None else names.offsets(offsets, item.name),
        )
        own = [values] if offsets is None else [values, offsets]
        array_of.update(zip(own, described.arrays, strict=True))
        inputs.append(described)
    targets = [
        TargetSchema(name=name, dtype=_dtype(node), shape=names.shape(node, name))
        for name, node in zip(recorded.targets, outputs, strict=True)
    ]
    return Schema(
        inputs=tuple(inputs),
        targets=tuple(targets),
        lookups=tuple(_lookup(node, array_of) for node in recorded.lookups),
    )


class _DimensionNames:
    """Names of dimensions that vary: "batch" is the first one of the first output."""

    def __init__(self, outputs: list[fx.Node]) -> None:
        self._names: dict[str, str] = {}
        self._batch_size: int | None = None
        for node in outputs:
            sizes = _sizes(node)
            if sizes and not isinstance(sizes[0], int):
                self._names[str(sizes[0])] = "batch"
                self._batch_size = sizes[0].node.hint
                break

    def shape(self, node: fx.Node, owner: str) -> Shape:
        """A size that is met for the first time is called after the array that it is met in."""
        return tuple(
            size
            if isinstance(size, int)
            else self._names.setdefault(str(size), owner if place == 0 else f"{owner}.{place}")
            for place, size in enumerate(_sizes(node))
        )

    def offsets(self, node: fx.Node, owner: str) -> Shape:
        """Offsets are as many as examples, or one more: which, the example batch tells."""
        [size] = _sizes(node)
        varies = not isinstance(size, int)
        if varies and self._batch_size is not None and size.node.hint == self._batch_size + 1:
            self._names.setdefault(str(size), "batch + 1")
        return self.shape(node, f"{owner}.offsets")


def _lookup(node: fx.Node, array_of: dict[fx.Node, str]) -> LookupSchema:
    ids, table, _, padding_id, unknown = node.args
    return LookupSchema(
        table=str(table),
        ids=array_of.get(ids),  # type: ignore[arg-type]
        padding_id=padding_id,  # type: ignore[arg-type]
        unknown="initial" if unknown == "initial" else "zeros",
    )


def _value(node: fx.Node) -> Tensor:
    value: Any = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def _sizes(node: fx.Node) -> tuple[Any, ...]:
    """Ints, and symbols for sizes that vary."""
    return tuple(_value(node).shape)


def _dtype(node: fx.Node) -> str:
    return str(_value(node).dtype).removeprefix("torch.")
