"""Batches without an example, for engines that cannot compute them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparsefleet.export.feeds import Arrays, base_of
from sparsefleet.export.schema import Schema, Shape

__all__ = ["is_empty", "one_example", "without_examples"]

_BATCH = "batch"


def is_empty(schema: Schema, arrays: Arrays) -> bool:
    """Whether there is no example, and every target says so by its shape."""
    return all(_BATCH in target.shape for target in schema.targets) and any(
        isinstance(wanted, str) and base_of(wanted, size) == (_BATCH, 0)
        for name, shape in _shapes(schema)
        for wanted, size in zip(shape, arrays[name].shape, strict=True)
    )


def one_example(schema: Schema, arrays: Arrays) -> Arrays:
    """Inputs of a batch of one, all zeros, in place of those of an empty batch."""
    made: Arrays = {}
    for name, shape in _shapes(schema):
        array = arrays[name]
        sizes = [
            size + (isinstance(wanted, str) and base_of(wanted, size)[0] == _BATCH)
            for wanted, size in zip(shape, array.shape, strict=True)
        ]
        made[name] = np.zeros(sizes, array.dtype)
    return made


def without_examples(schema: Schema, targets: Arrays) -> Arrays:
    """Targets of a batch of one, cut to those of an empty one."""
    return {
        target.name: targets[target.name][
            tuple(slice(0 if size == _BATCH else None) for size in target.shape)
        ]
        for target in schema.targets
    }


def _shapes(schema: Schema) -> Iterator[tuple[str, Shape]]:
    """Arrays of the graph with the shapes they should have."""
    for item in schema.inputs:
        shapes = (item.shape,) if item.offsets is None else (item.shape, item.offsets)
        yield from zip(item.arrays, shapes, strict=True)
