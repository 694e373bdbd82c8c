"""Matrix products, diagonals, triangles and padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.param_attr import to_param_attr
from sparsefleet.fluid.lowering.registry import Shape, ShapeRule, op, product_of, same_size
from sparsefleet.fluid.operators.elementwise import broadcast
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, op_settings
from sparsefleet.fluid.operators.shaping import assign
from sparsefleet.nn.matrix_products import linear, multiply

__all__ = [
    "cos_sim",
    "diag",
    "diag_embed",
    "fc",
    "flip",
    "l2_normalize",
    "matmul",
    "meshgrid",
    "mul",
    "pad2d",
    "pad_constant_like",
    "trace",
    "tril",
    "triu",
]

Tensor = torch.Tensor


def _mul_shape(x: Shape, y: Shape, **attrs: Any) -> list[Shape]:
    rows, columns = attrs.get("x_num_col_dims", 1), attrs.get("y_num_col_dims", 1)
    same_size(product_of(x[rows:]), product_of(y[:columns]))
    return [(*x[:rows], *y[columns:])]


@op("mul", "X Y", shape=ShapeRule(_mul_shape))
def mul_op(x: Tensor, y: Tensor, *, x_num_col_dims: int = 1, y_num_col_dims: int = 1) -> Tensor:
    """Multiply two tensors, flattened to matrices.

    The given number of leading axes of each become its rows.
    """
    rows, columns = x.shape[:x_num_col_dims], y.shape[y_num_col_dims:]
    left = x.reshape(math.prod(rows), math.prod(x.shape[x_num_col_dims:]))
    right = y.reshape(math.prod(y.shape[:y_num_col_dims]), math.prod(columns))
    return multiply(left, right).reshape(*rows, *columns)


@op("mul_add", "X Y Bias")
def mul_add(
    x: Tensor, y: Tensor, bias: Tensor, *, x_num_col_dims: int = 1, y_num_col_dims: int = 1
) -> Tensor:
    """Multiply by a matrix and add a bias to each row, in one pass."""
    del y_num_col_dims  # 1 for a matrix
    left = x.reshape(-1, math.prod(x.shape[x_num_col_dims:]))
    return multiply(left, y, bias).reshape(*x.shape[:x_num_col_dims], y.shape[1])


def matmul_shape(x: Shape, y: Shape, transpose_x: bool, transpose_y: bool) -> Shape:
    """Return the shape of a product. A vector x is treated as one row, a vector y as one column.

    >>> matmul_shape((-1, -1, -1), (-1, -1, 16), False, False)
    (-1, -1, 16)
    >>> matmul_shape((3,), (3,), True, True)
    (3, 3)
    >>> matmul_shape((3, 1, 2, 5), (3, 5, 4), False, False)  # 3 products either way
    (3, 1, 2, 4)
    """
    left = (1, *x) if len(x) == 1 else x
    right = (*y, 1) if len(y) == 1 else y
    rows, inner = left[-2:][::-1] if transpose_x else left[-2:]
    other, columns = right[-2:][::-1] if transpose_y else right[-2:]
    same_size(inner, other)
    if len(left) > 2 and len(right) > 2:
        batch = _batch_shape(left[:-2], right[:-2])
    else:
        batch = left[:-2] or right[:-2]
    made = [*batch, rows, columns]
    if len(x) == 1 and made[-2] == 1:
        del made[-2]
    if len(y) == 1 and made[-1] == 1:
        del made[-1]
    return tuple(made) or (1,)


def _batch_shape(x: Shape, y: Shape) -> Shape:
    """Return a batched product's leading sizes: x's, if y has the same number of matrices."""
    counts = product_of(x), product_of(y)
    if counts[0] == counts[1] >= 0 or (len(x) > len(y) and min(counts) < 0):
        return x
    for one, two in zip(x[::-1], y[::-1], strict=False):
        same_size(one, two)
    return broadcast(x, y)


def _matmul_shapes(x: Shape, y: Shape, **attrs: Any) -> list[Shape]:
    flags = (bool(attrs.get("transpose_X")), bool(attrs.get("transpose_Y")))
    return [matmul_shape(x, y, *flags)]


@op("matmul", "X Y", shape=ShapeRule(_matmul_shapes))
def matmul_op(
    x: Tensor,
    y: Tensor,
    *,
    transpose_X: bool = False,  # noqa: N803  Fluid's name
    transpose_Y: bool = False,  # noqa: N803
    alpha: float = 1.0,
) -> Tensor:
    """Multiply matrices, optionally transposed. A vector x is one row, a vector y one column."""
    shape = matmul_shape(tuple(x.shape), tuple(y.shape), transpose_X, transpose_Y)
    x = x.unsqueeze(0) if x.dim() == 1 else x
    y = y.unsqueeze(1) if y.dim() == 1 else y
    if 2 not in (x.dim(), y.dim()) and x.shape[:-2].numel() == y.shape[:-2].numel():
        x, y = x.flatten(0, -3), y.flatten(0, -3)
    x = x.mT if transpose_X else x
    if y.dim() > 2:
        product = torch.matmul(x, y.mT if transpose_Y else y)
    else:
        product = linear(x, y) if transpose_Y else multiply(x, y)
    product = product.reshape(shape)
    return product if alpha == 1.0 else product * alpha


@op("cos_sim", "X Y")
def cos_sim_op(x: Tensor, y: Tensor) -> Tensor:
    """Return the cosine similarity of corresponding rows, [N, 1]; y may have a single row."""
    return functional.cosine_similarity(x, y.expand_as(x), dim=-1, eps=1e-12).unsqueeze(-1)


@op("l2_normalize", "X", lod="none")
def l2_normalize_op(x: Tensor, *, axis: int, epsilon: float = 1e-12) -> Tensor:
    return x / torch.sqrt(x.square().sum(axis, keepdim=True) + epsilon)


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
    """Apply an activation to the sum of all inputs, each times its own weights, plus a bias.

    num_flatten_dims: the number of leading axes that become rows; -1 means all but the last.
    param_attr: one attr for all inputs, or a list.

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
        raise helper.refuse(
            f"got {len(inputs)} inputs and {len(attrs)} param_attrs, expected one per input"
        )
    products = []
    for x, attr in zip(inputs, attrs, strict=True):
        if not helper.check_input(x).dtype.startswith("float"):
            raise helper.refuse(
                f"input must be floating-point, got {x}; convert it with fluid.layers.cast"
            )
        rows = len(x.shape) - 1 if num_flatten_dims == -1 else num_flatten_dims
        sizes = x.shape[rows:]
        known = to_param_attr(attr)
        if -1 in sizes or not sizes or known is None:
            raise helper.refuse(
                f"{x} has unknown sizes after its first {rows} axes, which become rows"
            )
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
    """Multiply matrices in the last two axes; scale the product by alpha."""
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
    """Multiply two tensors, each flattened to a matrix.

    The first `x_num_col_dims` axes of x become the rows of its matrix, and likewise for y.
    """
    helper = LayerHelper("mul", name)
    attrs = {"x_num_col_dims": x_num_col_dims, "y_num_col_dims": y_num_col_dims}
    inputs = {"X": helper.check_input(x, "x"), "Y": helper.check_input(y, "y")}
    return helper.add("mul", inputs, attrs)


@layer
def cos_sim(X: Variable, Y: Variable) -> Variable:  # noqa: N803  Fluid's names
    """Return the cosine similarity of corresponding rows, [N, 1]; Y may have a single row."""
    helper = LayerHelper("cos_sim")
    return helper.add("cos_sim", {"X": helper.check_input(X, "X"), "Y": helper.check_input(Y, "Y")})


@layer
def l2_normalize(
    x: Variable, axis: int, epsilon: float = 1e-12, name: str | None = None
) -> Variable:
    """Divide x by its L2 norm along an axis."""
    helper = LayerHelper("l2_normalize", name)
    attrs = {"axis": 0 if len(x.shape) == 1 else axis, "epsilon": epsilon}
    return helper.add("l2_normalize", {"X": helper.check_input(x, "x")}, attrs)


@layer
def diag(diagonal: Variable | Any) -> Variable:
    """Return a matrix with these numbers on its diagonal."""
    helper = LayerHelper("diag")
    given = diagonal if isinstance(diagonal, Variable) else assign(np.asarray(diagonal))
    return helper.add("diag", {"Diagonal": given}, stop_gradient=True)


@layer
def diag_embed(input: Variable | Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Variable:
    """Use the last axis as the diagonals of matrices in the axes dim1 and dim2."""
    helper = LayerHelper("diag_embed")
    given = input if isinstance(input, Variable) else assign(np.asarray(input))
    return helper.add(
        "diag_embed", {"Input": given}, {"offset": offset, "dim1": dim1, "dim2": dim2}
    )


def _half(type: str, x: Variable, diagonal: int, name: str | None) -> Variable:
    helper = LayerHelper(type, name)
    attrs = {"diagonal": diagonal, "lower": type == "tril"}
    out = helper.create_variable(helper.name, dtype=helper.check_input(x).dtype)
    return helper.add("tril_triu", {"X": x}, attrs, out=out)


@layer
def tril(input: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """Return the lower triangle of matrices, with 0 above it."""
    return _half("tril", input, diagonal, name)


@layer
def triu(input: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """Return the upper triangle of matrices, with 0 below it."""
    return _half("triu", input, diagonal, name)


@layer
def trace(
    input: Variable,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Return the sum of the diagonals of matrices in the axes dim1 and dim2."""
    helper = LayerHelper("trace", name)
    made = helper.new_variable() if out is None else out
    attrs = op_settings("trace", locals())
    helper.append_op("trace", {"Input": helper.check_input(input)}, {"Out": made}, attrs)
    return made


@layer
def meshgrid(input: Sequence[Variable], name: str | None = None) -> list[Variable]:
    """Expand vectors of sizes N1, N2, ... to shape [N1, N2, ...] each."""
    helper = LayerHelper("meshgrid", name)
    outs = [helper.new_variable(helper.check_input(x).dtype) for x in input]
    helper.append_op("meshgrid", {"X": list(input)}, {"Out": outs})
    return outs


@layer
def flip(input: Variable, dims: Sequence[int], name: str | None = None) -> Variable:
    """Reverse the order of elements along the given axes."""
    helper = LayerHelper("flip", name)
    return helper.add("reverse", {"X": helper.check_input(input)}, {"axis": list(dims)})


@layer
def pad2d(
    input: Variable,
    paddings: Sequence[int] | Variable = (0, 0, 0, 0),
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Pad images at the top, bottom, left and right; mode is "constant", "reflect" or "edge"."""
    helper = LayerHelper("pad2d", name)
    if mode not in ("constant", "reflect", "edge") or data_format not in ("NCHW", "NHWC"):
        raise helper.refuse(
            f"mode must be 'constant', 'reflect' or 'edge', and data_format 'NCHW' or 'NHWC'; got "
            f"{mode!r} and {data_format!r}"
        )
    inputs = {"X": helper.check_input(input)}
    if isinstance(paddings, Variable):
        inputs["Paddings"] = paddings
    elif len(paddings) != 4:
        raise helper.refuse(f"paddings must be four numbers, got {paddings!r}")
    attrs = {
        "paddings": [] if isinstance(paddings, Variable) else list(paddings),
        "mode": mode,
        "pad_value": float(pad_value),
        "data_format": data_format,
    }
    return helper.add("pad2d", inputs, attrs, dtype=input.dtype)


@layer
def pad_constant_like(
    x: Variable, y: Variable, pad_value: float = 0.0, name: str | None = None
) -> Variable:
    """Pad y at the end of each axis to the shape of x."""
    helper = LayerHelper("pad_constant_like", name)
    inputs = {"X": helper.check_input(x, "x"), "Y": helper.check_input(y, "y")}
    return helper.add("pad_constant_like", inputs, {"pad_value": float(pad_value)})
