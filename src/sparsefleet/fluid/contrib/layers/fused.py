"""Several steps as one layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.embedding import add_lookup

__all__ = [
    "fused_elemwise_activation",
    "fused_embedding_seq_pool",
    "partial_concat",
    "partial_sum",
    "shuffle_batch",
]

_BINARY = ("elementwise_add", "elementwise_mul")
_UNARY = ("relu", "scale", "tanh", "sigmoid", "gelu")


@layer
def fused_elemwise_activation(
    x: Variable,
    y: Variable,
    functor_list: str | Sequence[str],
    axis: int = -1,
    scale: float = 0.0,
    save_intermediate_out: bool = True,
) -> Variable:
    """["elementwise_add", "relu"] is x + relu(y), ["relu", "elementwise_add"] is relu(x + y)."""
    del save_intermediate_out
    helper = LayerHelper("fused_elemwise_activation")
    names = functor_list.split(",") if isinstance(functor_list, str) else list(functor_list)
    if len(names) != 2 or not (
        (names[0] in _BINARY and names[1] in _UNARY) or (names[1] in _BINARY and names[0] in _UNARY)
    ):
        raise helper.refuse(
            f"functor_list must be one of {_BINARY} and one of {_UNARY}, got {names!r}"
        )
    out = helper.new_variable(helper.check_input(x, "x").dtype)
    outer, inner = names
    settings = {"scale": scale} if "scale" in names else {}
    middle = helper.new_variable(x.dtype)
    if inner in _UNARY:
        helper.append_op(inner, {"X": helper.check_input(y, "y")}, {"Out": middle}, settings)
        helper.append_op(outer, {"X": x, "Y": middle}, {"Out": out}, {"axis": axis})
    else:
        helper.append_op(inner, {"X": x, "Y": y}, {"Out": middle}, {"axis": axis})
        helper.append_op(outer, {"X": middle}, {"Out": out}, settings)
    return out


@layer
def fused_embedding_seq_pool(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    padding_idx: int | None = None,
    combiner: str = "sum",
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """The sum of the rows of each sequence of ids: `embedding`, then `sequence_pool`."""
    helper = LayerHelper("fused_embedding_seq_pool")
    if combiner != "sum":
        raise helper.refuse(f"combiner must be 'sum', got {combiner!r}")
    out = helper.new_variable(dtype)
    rows = add_lookup(
        helper, "lookup_table", input, size, is_sparse, padding_idx, param_attr, dtype
    )
    attrs = {"pooltype": "SUM", "pad_value": 0.0}
    helper.append_op("sequence_pool", {"X": rows}, {"Out": out}, attrs)
    return out


def _parts(
    type: str, input: Variable | Sequence[Variable], start_index: int, length: int
) -> Variable:
    helper = LayerHelper(type)
    inputs = [input] if isinstance(input, Variable) else list(input)
    attrs = {"start_index": start_index, "length": length}
    return helper.add(type, {"X": [helper.check_input(x) for x in inputs]}, attrs)


@layer
def partial_concat(
    input: Variable | Sequence[Variable], start_index: int = 0, length: int = -1
) -> Variable:
    """`length` columns of each, from start_index on, beside each other."""
    return _parts("partial_concat", input, start_index, length)


@layer
def partial_sum(
    input: Variable | Sequence[Variable], start_index: int = 0, length: int = -1
) -> Variable:
    """The sum of `length` columns of each, from start_index on."""
    return _parts("partial_sum", input, start_index, length)


@layer
def shuffle_batch(x: Variable, seed: int | Variable | None = None) -> Variable:
    """Rows in a random order, another one in each run: a cheap source of negatives."""
    helper = LayerHelper("shuffle_batch")
    if isinstance(seed, Variable):
        raise helper.refuse("seed must be a number: the order follows the program's seed")
    out = helper.new_variable(helper.check_input(x, "x").dtype)
    order = helper.new_variable("int64", stop_gradient=True)
    outputs = {"Out": out, "ShuffleIdx": order}
    helper.append_op("shuffle_batch", {"X": x}, outputs, {"seed": seed or 0})
    return out
