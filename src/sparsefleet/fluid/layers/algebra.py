"""Products of vectors and matrices, parts of matrices, and what is true of whole tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.elementwise import elementwise_add, elementwise_mul
from sparsefleet.fluid.layers.shaping import assign
from sparsefleet.fluid.param_attr import to_param_attr

__all__ = [
    "addcmul",
    "addmm",
    "allclose",
    "bilinear_tensor_product",
    "bmm",
    "clamp",
    "clip_by_norm",
    "cross",
    "dist",
    "dot",
    "elementwise_equal",
    "fsp_matrix",
    "has_inf",
    "has_nan",
    "isfinite",
    "kron",
    "log_softmax",
    "logsumexp",
    "rank",
    "size",
    "t",
]


def _pair(
    helper: LayerHelper, type: str, x: Variable, y: Variable, slots: str = "X Y", **attrs: Any
) -> Variable:
    first, second = slots.split()
    inputs = {first: helper.check_input(x, "x"), second: helper.check_input(y, "y")}
    return helper.add(type, inputs, attrs)


@layer
def bilinear_tensor_product(
    x: Variable,
    y: Variable,
    size: int,
    act: str | None = None,
    name: str | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
) -> Variable:
    """x W_i y + b_i for `size` matrices of its own: x [N, M], y [N, K] -> [N, size]."""
    helper = LayerHelper("bilinear_tensor_product", name)
    known, shift = to_param_attr(param_attr), to_param_attr(bias_attr)
    if known is None:
        raise helper.refuse("param_attr cannot be False")
    shape = [size, helper.check_input(x, "x").shape[1], helper.check_input(y, "y").shape[1]]
    inputs = {"X": x, "Y": y, "Weight": helper.create_parameter(known, shape, x.dtype)}
    if shift is not None:
        inputs["Bias"] = helper.create_parameter(shift, [1, size], x.dtype, is_bias=True)
    return helper.activate(helper.add("bilinear_tensor_product", inputs), act)


@layer
def fsp_matrix(x: Variable, y: Variable) -> Variable:
    """The mean product of each channel of x with each of y: [N, C1, C2]."""
    return _pair(LayerHelper("fsp_matrix"), "fsp", x, y)


@layer
def addmm(
    input: Variable,
    x: Variable,
    y: Variable,
    alpha: float = 1.0,
    beta: float = 1.0,
    name: str | None = None,
) -> Variable:
    """beta * input + alpha * x y."""
    helper = LayerHelper("addmm", name)
    inputs = {"Input": helper.check_input(input), "X": x, "Y": y}
    return helper.add("addmm", inputs, {"Alpha": float(alpha), "Beta": float(beta)})


@layer
def addcmul(
    input: Variable,
    tensor1: Variable,
    tensor2: Variable,
    value: float = 1.0,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """input + value * tensor1 * tensor2."""
    helper = LayerHelper("addcmul", name)
    product = elementwise_mul(tensor1, tensor2) * value
    return _given(helper, elementwise_add(input, product), out)


def _given(helper: LayerHelper, made: Variable, out: Variable | None) -> Variable:
    if out is None:
        return made
    helper.append_op("assign", {"X": made}, {"Out": out})
    return out


@layer
def bmm(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """The products of matrices [B, N, M] and [B, M, K]."""
    return _pair(LayerHelper("bmm", name), "bmm", x, y)


@layer
def dot(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """The sum of products over the last axis, which stays."""
    return _pair(LayerHelper("dot", name), "dot", x, y)


@layer
def cross(input: Variable, other: Variable, dim: int | None = None) -> Variable:
    """The vector product along an axis of size 3, the first such by default."""
    return _pair(LayerHelper("cross"), "cross", input, other, dim=dim)


@layer
def kron(
    x: Variable, y: Variable, out: Variable | None = None, name: str | None = None
) -> Variable:
    """The Kronecker product."""
    helper = LayerHelper("kron", name)
    return _given(helper, _pair(helper, "kron", x, y), out)


@layer
def dist(x: Variable, y: Variable, p: float = 2) -> Variable:
    """The p-norm of the difference: [1]."""
    return _pair(LayerHelper("dist"), "dist", x, y, p=float(p))


@layer
def allclose(
    input: Variable,
    other: Variable,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
    name: str | None = None,
) -> Variable:
    """Whether both are the same but for rounding: bool[1]."""
    helper = LayerHelper("allclose", name)
    attrs = {"rtol": rtol, "atol": atol, "equal_nan": equal_nan}
    return _pair(helper, "allclose", input, other, "Input Other", **attrs)


@layer
def elementwise_equal(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Whether elements are equal: bool."""
    return _pair(LayerHelper("elementwise_equal", name), "equal", x, y)


@layer
def t(input: Variable, name: str | None = None) -> Variable:
    """The transposed matrix; a vector is itself."""
    helper = LayerHelper("t", name)
    axes = len(helper.check_input(input).shape)
    if axes > 2:
        raise helper.refuse(f"takes a matrix or a vector, got {input}")
    return helper.add("transpose2", {"X": input}, {"axis": [1, 0]}) if axes == 2 else input


@layer
def clamp(
    input: Variable,
    min: float | None = None,
    max: float | None = None,
    output: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Each element into min..max, where they are given."""
    helper = LayerHelper("clamp", name)
    if min is None and max is None:
        raise helper.refuse("min or max must be given")
    attrs = {
        "min": float("-inf") if min is None else float(min),
        "max": float("inf") if max is None else float(max),
    }
    return _given(helper, helper.add("clip", {"X": helper.check_input(input)}, attrs), output)


@layer
def clip_by_norm(x: Variable, max_norm: float, name: str | None = None) -> Variable:
    """Made shorter if its norm is larger than max_norm."""
    helper = LayerHelper("clip_by_norm", name)
    out = helper.add(
        "clip_by_norm", {"X": helper.check_input(x, "x")}, {"max_norm": float(max_norm)}
    )
    out.shape, out.dtype = x.shape, x.dtype
    return out


def _true_of(type: str, x: Variable) -> Variable:
    helper = LayerHelper(type)
    return helper.add(type, {"X": helper.check_input(x, "x")}, stop_gradient=True)


@layer
def isfinite(x: Variable) -> Variable:
    """Whether all elements are numbers: bool[1]."""
    return _true_of("isfinite", x)


@layer
def has_inf(x: Variable) -> Variable:
    """Whether an element is infinite: bool[1]."""
    return _true_of("isinf", x)


@layer
def has_nan(x: Variable) -> Variable:
    """Whether an element is no number: bool[1]."""
    return _true_of("isnan", x)


@layer
def rank(input: Variable) -> Variable:
    """The number of axes: int32."""
    helper = LayerHelper("rank")
    return assign(np.array(len(helper.check_input(input).shape), dtype=np.int32))


@layer
def size(input: Variable) -> Variable:
    """The number of elements: int64[1]."""
    helper = LayerHelper("size")
    return helper.add("size", {"Input": helper.check_input(input)}, stop_gradient=True)


@layer
def logsumexp(
    x: Variable,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """log(sum(exp(x))) over axes."""
    helper = LayerHelper("logsumexp", name)
    axes = [dim] if isinstance(dim, int) else None if dim is None else list(dim)
    attrs = {"dim": axes, "keepdim": keepdim}
    return _given(helper, helper.add("logsumexp", {"X": helper.check_input(x, "x")}, attrs), out)


@layer
def log_softmax(
    input: Variable, axis: int | None = None, dtype: Any = None, name: str | None = None
) -> Variable:
    """log(softmax(x)) along an axis."""
    helper = LayerHelper("log_softmax", name)
    x = helper.check_input(input) if dtype is None else input.astype(dtype)
    helper.skip_names(1)  # of the softmax
    return helper.add("log_softmax", {"X": x}, {"axis": -1 if axis is None else axis})
