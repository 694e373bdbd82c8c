"""`fluid.embedding` and `fluid.one_hot`: ids of any shape, where `fluid.layers` wants [..., 1]."""

from __future__ import annotations

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import layer
from sparsefleet.fluid.layers.embedding import embedding_of_ids as embedding
from sparsefleet.fluid.layers.indexing import one_hot_rows

__all__ = ["embedding", "one_hot"]


@layer
def one_hot(input: Variable, depth: int | Variable, allow_out_of_range: bool = False) -> Variable:
    """ids int64[...] -> float32[..., depth], 1 at the id; allow_out_of_range: else all 0."""
    return one_hot_rows("one_hot_v2", input, depth, allow_out_of_range)
