"""The schema of a recorded graph: dimensions get names, lookups are listed."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from sparsefleet.export.recorded_graph import RecordedGraph
from sparsefleet.export.schema import InputSchema, LookupSchema, Schema, Shape, TargetSchema

__all__ = ["schema_of"]


def schema_of(recorded: RecordedGraph) -> Schema:
    """What the graph takes, looks up and puts out."""
    names = _DimensionNames([value for _, value in recorded.targets])
    inputs = []
    for item, values in recorded.inputs:
        shape = names.shape(values[0], item.name)
        offsets = names.offsets(values[1], item.name) if item.is_ragged else None
        dtype = _dtype(values[0])
        inputs.append(InputSchema(name=item.name, dtype=dtype, shape=shape, offsets=offsets))
    targets = [
        TargetSchema(name=name, dtype=_dtype(value), shape=names.shape(value, name))
        for name, value in recorded.targets
    ]
    arrays = [name for described in inputs for name in described.arrays]
    placeholders = recorded.program.graph_signature.user_inputs
    array_of = dict(zip(map(str, placeholders), arrays, strict=True))
    lookups = [_lookup(node, array_of) for node in recorded.lookups]
    return Schema(inputs=tuple(inputs), targets=tuple(targets), lookups=tuple(lookups))


class _DimensionNames:
    """Names of dimensions that vary: "batch" is the first one of the first output."""

    def __init__(self, outputs: list[Tensor]) -> None:
        self._names: dict[str, str] = {}
        self._batch_size: int | None = None
        for value in outputs:
            sizes: tuple[Any, ...] = value.shape
            if sizes and not isinstance(sizes[0], int):
                self._names[str(sizes[0])] = "batch"
                self._batch_size = sizes[0].node.hint
                break

    def shape(self, value: Tensor, owner: str) -> Shape:
        """A size that is met for the first time is called after the array that it is met in."""
        sizes: tuple[Any, ...] = value.shape
        return tuple(
            size
            if isinstance(size, int)
            else self._names.setdefault(str(size), owner if place == 0 else f"{owner}.{place}")
            for place, size in enumerate(sizes)
        )

    def offsets(self, value: Tensor, owner: str) -> Shape:
        """Offsets are as many as examples, or one more: which, the example batch tells."""
        size: Any = value.shape[0]
        varies = not isinstance(size, int)
        if varies and self._batch_size is not None:
            more = size.node.hint - self._batch_size
            if more in (0, 1):
                self._names.setdefault(str(size), "batch + 1" if more else "batch")
        return self.shape(value, f"{owner}.offsets")


def _lookup(node: fx.Node, array_of: dict[str, str]) -> LookupSchema:
    ids, table, _, padding_id, unknown = node.args
    assert isinstance(ids, fx.Node)
    return LookupSchema(
        table=str(table),
        ids=array_of.get(ids.name),
        padding_id=padding_id,  # type: ignore[arg-type]
        unknown="initial" if unknown == "initial" else "zeros",
    )


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
