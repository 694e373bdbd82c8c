"""Inputs of several requests as one batch, and its predictions taken apart again.

Letters: B examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError
from sparsefleet.export.feeds import Arrays
from sparsefleet.export.schema import Schema

__all__ = ["BatchLayout"]


class BatchLayout:
    """How examples lie in the arrays of a model. Raises ConfigError for a model of which some
    input or target has not a value for each example: examples could not be told apart.

    >>> from sparsefleet.export.schema import InputSchema, TargetSchema
    >>> tags = InputSchema(name="tags", dtype="int64", shape=("tags",), offsets=("batch",))
    >>> score = TargetSchema(name="score", dtype="float32", shape=("batch",))
    >>> layout = BatchLayout(Schema(inputs=(tags,), targets=(score,), lookups=()))
    >>> one = {"tags.values": np.array([7, 8]), "tags.offsets": np.array([0])}
    >>> layout.merge([one, one])
    {'tags.values': array([7, 8, 7, 8]), 'tags.offsets': array([0, 2])}
    >>> layout.count(one)
    1
    """

    def __init__(self, schema: Schema) -> None:
        plain = [item for item in schema.inputs if not item.is_ragged]
        shapes = {str(item): item.shape for item in plain}
        shapes |= {str(target): target.shape for target in schema.targets}
        for said, shape in shapes.items():
            if shape[:1] != ("batch",):
                raise ConfigError(
                    f"a service answers for each example, but {said} is not a value for each: "
                    "export with feeds= and targets= that are"
                )
        self._ragged = [item for item in schema.inputs if item.is_ragged]
        self._plain = [item.name for item in plain]

    def count(self, arrays: Arrays) -> int:
        """B of these inputs."""
        if self._plain:
            return len(arrays[self._plain[0]])
        item = self._ragged[0]
        return len(arrays[item.arrays[1]]) - item.is_closed

    def key(self, arrays: Arrays) -> tuple[tuple[int, ...], ...]:
        """Inputs of equal keys can be merged."""
        return tuple(array.shape[1:] for array in arrays.values())

    def merge(self, parts: Sequence[Arrays]) -> Arrays:
        """All examples of the parts, in order."""
        if len(parts) == 1:
            return parts[0]
        merged = {name: np.concatenate([part[name] for part in parts]) for name in self._plain}
        for item in self._ragged:
            values, offsets = item.arrays
            pieces, begin = [], 0
            for at, part in enumerate(parts):
                piece: NDArray[Any] = part[offsets] + begin
                is_last = at == len(parts) - 1
                pieces.append(piece if not item.is_closed or is_last else piece[:-1])
                begin += len(part[values])
            merged[values] = np.concatenate([part[values] for part in parts])
            merged[offsets] = np.concatenate(pieces)
        return merged

    def part(self, arrays: Arrays, end: int) -> Arrays:
        """The first `end` examples."""
        first = {name: arrays[name][:end] for name in self._plain}
        for item in self._ragged:
            values, offsets = item.arrays
            ends: NDArray[Any] = arrays[offsets]
            if not item.is_closed:
                ends = np.append(ends, len(arrays[values]))
            first[values] = arrays[values][: ends[end]]
            first[offsets] = ends[: end + item.is_closed]
        return first

    def split(self, targets: Arrays, counts: Sequence[int]) -> list[Arrays]:
        """The targets of each part, which have that many examples."""
        ends = np.cumsum(counts)[:-1]
        pieces = {name: np.split(array, ends) for name, array in targets.items()}
        return [{name: pieces[name][at] for name in targets} for at in range(len(counts))]
