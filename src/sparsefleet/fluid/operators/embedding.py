"""Embeddings, which look up rows of a parameter by id.

`fluid.layers` takes ids [..., 1]; `fluid.embedding` and `fluid.one_hot` take ids of any shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.param_attr import to_param_attr
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import Shape, float_rule, op
from sparsefleet.fluid.lowering.tables import pool_bags
from sparsefleet.fluid.operators.indexing import one_hot_rows
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, make_plain, named

__all__ = ["embedding"]

Tensor = torch.Tensor


def _rows(weight: Tensor, ids: Tensor, padding_idx: int) -> Tensor:
    ids = ids.long()
    if not ids.is_meta and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(weight):
        raise ValueError(f"ids must be in 0..{len(weight) - 1}, got {ids.min()}..{ids.max()}")
    rows = torch.nn.functional.embedding(ids, weight)
    return rows if padding_idx < 0 else rows * (ids != padding_idx).unsqueeze(-1)


def _rows_of_column(table: Shape, ids: Shape, /, **attrs: Any) -> list[Shape] | None:
    del attrs
    return [(*ids[:-1], table[1])] if len(table) == 2 and ids[-1:] == (1,) else None


@op("lookup_table", "W Ids", shape=float_rule(_rows_of_column, takes_indices=True))
def lookup_table(weight: Tensor, ids: Tensor, *, padding_idx: int = -1) -> Tensor:
    """Look up rows of width D: ids int64[..., 1] -> [..., D]."""
    if ids.shape[-1] != 1:
        raise ValueError(
            f"the last axis of ids must have size 1, got {ids.shape[-1]}; fluid.embedding takes "
            "ids without such an axis"
        )
    return _rows(weight, ids.squeeze(-1), padding_idx)


def _rows_of_ids(table: Shape, ids: Shape, /, **attrs: Any) -> list[Shape] | None:
    del attrs
    return [(*ids, table[1])] if len(table) == 2 else None


@op("lookup_table_v2", "W Ids", shape=float_rule(_rows_of_ids, takes_indices=True))
def lookup_table_v2(weight: Tensor, ids: Tensor, *, padding_idx: int = -1) -> Tensor:
    """Look up rows of width D: ids int64[...] -> [..., D]."""
    return _rows(weight, ids, padding_idx)


@op("lookup_bag", "W Ids", lod="function")
def lookup_bag(
    weight: Tensor,
    ids: Tensor,
    *,
    lods: list[Lod],
    flat: bool,
    padding_idx: int,
    pooltype: str,
    pad_value: float,
) -> tuple[Tensor, Lod]:
    """Look up ids and sum each sequence. With `flat`, ids have the shape for lookup_table."""
    found = (lookup_table if flat else lookup_table_v2)(weight, ids, padding_idx=padding_idx)
    return pool_bags(found, lods[1], pooltype, pad_value)


@layer
def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """Implement `fluid.layers.embedding`: ids int64[..., 1] -> rows [..., D].

    size: [number of ids, row width D].
    is_sparse: keep the rows in a table and update only the rows of ids in the batch.
    padding_idx: the id whose row is zeros and is not trained; -1 means the last id.

    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
    ...     ids = fluid.layers.data("ids", [1], dtype="int64")
    ...     embedding(ids, [10000001, 10], is_sparse=True)
    Variable('embedding_0.tmp_0', shape=(-1, 10), dtype='float32')
    """
    del is_distributed  # always true for a table
    return add_lookup(
        LayerHelper("embedding"),
        "lookup_table",
        input,
        size,
        is_sparse,
        padding_idx,
        param_attr,
        dtype,
    )


@layer
def embedding_of_ids(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """Implement `fluid.embedding`: ids int64[...] -> rows [..., D].

    See `fluid.layers.embedding`.
    """
    del is_distributed
    return add_lookup(
        LayerHelper("embedding"),
        "lookup_table_v2",
        input,
        size,
        is_sparse,
        padding_idx,
        param_attr,
        dtype,
    )


def add_lookup(
    helper: LayerHelper,
    type: str,
    ids: Variable,
    size: Sequence[int],
    is_sparse: bool,
    padding_idx: int | None,
    param_attr: Any,
    dtype: Any,
) -> Variable:
    """Add a `lookup_table` or `lookup_table_v2` operator, and its parameter, created with
    `helper`.
    """
    if helper.check_input(ids).dtype not in ("int64", "int32"):
        raise helper.refuse(f"ids must be int64, got {ids}")
    attr = to_param_attr(param_attr)
    if attr is None:
        raise helper.refuse("param_attr cannot be False")
    if not isinstance(size, (list, tuple)) or len(size) != 2:
        raise helper.refuse(f"size must be [ids, width], got {size!r}")
    weight = helper.create_parameter(attr, list(size), dtype, is_table=is_sparse)
    if not is_sparse:
        make_plain(helper.main_program, helper.startup_program, weight.name)
    padding = -1 if padding_idx is None else padding_idx % size[0]
    attrs = {"is_sparse": is_sparse, "padding_idx": padding}
    return helper.add(type, {"W": weight, "Ids": ids}, attrs)


@layer
@named("one_hot", "Encode ids int64[...] as float32[..., depth]; see `fluid.layers.one_hot`.")
def one_hot_of_ids(
    input: Variable, depth: int | Variable, allow_out_of_range: bool = False
) -> Variable:
    return one_hot_rows("one_hot_v2", input, depth, allow_out_of_range)
