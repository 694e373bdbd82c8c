"""`fluid.embedding` and `fluid.one_hot`: ids of any shape, where `fluid.layers` wants [..., 1]."""

from __future__ import annotations

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.embedding import embedding_of_ids as embedding

__all__ = ["embedding", "one_hot"]


@layer
def one_hot(input: Variable, depth: int, allow_out_of_range: bool = False) -> Variable:
    """ids int64[...] -> float32[..., depth], 1 at the id."""
    helper = LayerHelper("one_hot_v2")
    if allow_out_of_range:
        raise helper.refuse("allow_out_of_range is not supported")
    return helper.add("one_hot_v2", {"X": helper.check_input(input)}, {"depth": depth})
