"""Rows of a parameter by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer, make_plain
from sparsefleet.fluid.param_attr import to_param_attr

__all__ = ["embedding"]


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
    """`fluid.layers.embedding`: ids int64[..., 1] -> [..., D].

    size: [ids, D].
    is_sparse: the rows are in a table, and only those of ids in a batch are updated.
    padding_idx: the id that reads as zeros and is not trained; -1 is the last one.

    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
    ...     ids = fluid.layers.data("ids", [1], dtype="int64")
    ...     embedding(ids, [10000001, 10], is_sparse=True)
    Variable('embedding_0.tmp_0', shape=(-1, 10), dtype='float32')
    """
    del is_distributed  # of a table, all is
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
    """`fluid.embedding`: ids int64[...] -> [..., D]; see `fluid.layers.embedding`."""
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
    """Rows by the operator `lookup_table` or `lookup_table_v2`, with a parameter of `helper`."""
    if helper.check_input(ids).dtype not in ("int64", "int32"):
        raise helper.refuse(f"ids must be int64, got {ids}")
    attr = to_param_attr(param_attr)
    if attr is None or not isinstance(size, (list, tuple)) or len(size) != 2:
        raise helper.refuse(f"size must be [ids, width], got {size!r}; param_attr not False")
    weight = helper.create_parameter(attr, list(size), dtype, is_table=is_sparse)
    if not is_sparse:
        make_plain(helper.main_program, helper.startup_program, weight.name)
    padding = -1 if padding_idx is None else padding_idx % size[0]
    attrs = {"is_sparse": is_sparse, "padding_idx": padding}
    return helper.add(type, {"W": weight, "Ids": ids}, attrs)
