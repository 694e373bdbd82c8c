"""An embedding whose rows are always in a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import layer
from sparsefleet.fluid.layers.embedding import embedding_of_ids

__all__ = ["sparse_embedding"]


@layer
def sparse_embedding(
    input: Variable,
    size: Sequence[int],
    padding_idx: int | None = None,
    is_test: bool = False,
    entry: Any = None,
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """`fluid.embedding` with is_sparse=True.

    is_test: without effect: a program that does not train makes no rows anyway.
    """
    del is_test
    if entry is not None:
        raise ConfigError(
            f"sparse_embedding: entry rules are not supported, got {entry!r}: leave entry=None"
        )
    return embedding_of_ids(
        input,
        size,
        is_sparse=True,
        is_distributed=True,
        padding_idx=padding_idx,
        param_attr=param_attr,
        dtype=dtype,
    )
