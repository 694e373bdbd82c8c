"""`fluid.embedding` and `fluid.one_hot`, for ids of any shape; `fluid.layers` takes [..., 1]."""

from __future__ import annotations

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.operators.embedding import embedding_of_ids as embedding
from sparsefleet.fluid.operators.indexing import one_hot_rows
from sparsefleet.fluid.operators.layer_helper import layer

__all__ = ["embedding", "one_hot"]


@layer
def one_hot(input: Variable, depth: int | Variable, allow_out_of_range: bool = False) -> Variable:
    """Encode ids int64[...] as float32[..., depth].

    With allow_out_of_range, ids outside 0..depth - 1 are encoded as all 0.
    """
    return one_hot_rows("one_hot_v2", input, depth, allow_out_of_range)
