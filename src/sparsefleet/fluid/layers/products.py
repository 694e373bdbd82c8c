"""Products of matrices, and layers made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.param_attr import to_param_attr

__all__ = ["cos_sim", "fc", "l2_normalize", "matmul", "mul"]


@layer
def fc(
    input: Variable | Sequence[Variable],
    size: int,
    num_flatten_dims: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """act(sum of each input times its own weights, plus a bias).

    num_flatten_dims: so many first sizes of an input are rows; -1 all but the last.
    param_attr: one for all inputs, or a list.

    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
    ...     fc(fluid.data("x", [None, 13]), 400, act="relu")
    Variable('fc_0.tmp_2', shape=(-1, 400), dtype='float32')
    """
    helper = LayerHelper("fc", name)
    inputs: list[Any] = list(input) if isinstance(input, (list, tuple)) else [input]
    attrs = (
        list(param_attr) if isinstance(param_attr, (list, tuple)) else [param_attr] * len(inputs)
    )
    if not inputs or len(attrs) != len(inputs):
        raise helper.refuse(f"{len(inputs)} inputs and {len(attrs)} param_attrs: wanted as many")
    products = []
    for x, attr in zip(inputs, attrs, strict=True):
        if not helper.check_input(x).dtype.startswith("float"):
            raise helper.refuse(
                f"input must be of floats, got {x}; fluid.layers.cast makes them so"
            )
        rows = len(x.shape) - 1 if num_flatten_dims == -1 else num_flatten_dims
        sizes = x.shape[rows:]
        known = to_param_attr(attr)
        if -1 in sizes or not sizes or known is None:
            raise helper.refuse(f"{x} has no known sizes behind its first {rows}")
        weight = helper.create_parameter(known, [math.prod(sizes), size], x.dtype)
        shape = {"x_num_col_dims": rows, "y_num_col_dims": 1}
        products.append(helper.add("mul", {"X": x, "Y": weight}, shape))
    total = products[0] if len(products) == 1 else helper.add("sum", {"X": products})
    return helper.activate(helper.add_bias(total, bias_attr, len(total.shape) - 1), act)


@layer
def matmul(
    x: Variable,
    y: Variable,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    name: str | None = None,
) -> Variable:
    """The product of the last two sizes, times alpha."""
    helper = LayerHelper("matmul", name)
    attrs = {"transpose_X": transpose_x, "transpose_Y": transpose_y, "alpha": float(alpha)}
    inputs = {"X": helper.check_input(x, "x"), "Y": helper.check_input(y, "y")}
    return helper.add("matmul", inputs, attrs)


@layer
def mul(
    x: Variable,
    y: Variable,
    x_num_col_dims: int = 1,
    y_num_col_dims: int = 1,
    name: str | None = None,
) -> Variable:
    """The product of two tensors seen as matrices: so many first sizes are rows."""
    helper = LayerHelper("mul", name)
    attrs = {"x_num_col_dims": x_num_col_dims, "y_num_col_dims": y_num_col_dims}
    inputs = {"X": helper.check_input(x, "x"), "Y": helper.check_input(y, "y")}
    return helper.add("mul", inputs, attrs)


@layer
def cos_sim(X: Variable, Y: Variable) -> Variable:  # noqa: N803  Fluid's names
    """The cosine of each row of X with that of Y, or with Y's one row: [N, 1]."""
    helper = LayerHelper("cos_sim")
    return helper.add("cos_sim", {"X": helper.check_input(X, "X"), "Y": helper.check_input(Y, "Y")})


@layer
def l2_normalize(
    x: Variable, axis: int, epsilon: float = 1e-12, name: str | None = None
) -> Variable:
    """Divided by its length along an axis."""
    helper = LayerHelper("l2_normalize", name)
    attrs = {"axis": 0 if len(x.shape) == 1 else axis, "epsilon": epsilon}
    return helper.add("l2_normalize", {"X": helper.check_input(x, "x")}, attrs)
