"""Vector and matrix products, padding, and checks on whole tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.param_attr import to_param_attr
from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.operators.activations import ALONG_AXIS
from sparsefleet.fluid.operators.elementwise import elementwise_add, elementwise_mul
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, op_settings
from sparsefleet.fluid.operators.shaping import assign

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

Tensor = torch.Tensor


@op("bilinear_tensor_product", "X Y Weight Bias?")
def bilinear_tensor_product_op(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x W_i y + b_i for each i: x [N, M], y [N, K], weight [S, M, K] -> [N, S]."""
    out = torch.einsum("nm,smk,nk->ns", x, weight, y)
    return out if bias is None else out + bias


@op("fsp", "X Y", lod="none")
def fsp(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean product, over pixels, of each channel of x and each channel of y: [N, C1,
    C2].
    """
    left, right = x.flatten(2), y.flatten(2)
    return left @ right.mT / left.shape[2]


@op("addmm", "Input X Y", lod="none")
def addmm_op(given: Tensor, x: Tensor, y: Tensor, *, Alpha: float, Beta: float) -> Tensor:  # noqa: N803
    return Beta * given + Alpha * (x @ y)


@op("bmm", "X Y", lod="none")
def bmm_op(x: Tensor, y: Tensor) -> Tensor:
    return torch.bmm(x, y)


@op("dot", "X Y", lod="none")
def dot_op(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1, keepdim=True)


@op("cross", "X Y", lod="none")
def cross_op(x: Tensor, y: Tensor, *, dim: int | None = None) -> Tensor:
    axis = next(i for i, size_op in enumerate(x.shape) if size_op == 3) if dim is None else dim
    made: Tensor = torch.linalg.cross(x, y, dim=axis)
    return made


def _kron_shape(x: Shape, y: Shape, **_: Any) -> list[Shape]:
    rank = max(len(x), len(y))
    pairs = zip((1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y, strict=True)
    return [tuple(-1 if min(pair) < 0 else pair[0] * pair[1] for pair in pairs)]


@op("kron", "X Y", lod="none", infer=_kron_shape)
def kron_op(x: Tensor, y: Tensor) -> Tensor:
    return torch.kron(x, y)


@op("dist", "X Y", lod="none")
def dist_op(x: Tensor, y: Tensor, *, p: float = 2.0) -> Tensor:
    return torch.dist(x, y, p).reshape(1)


@op("trace", "Input", lod="none")
def trace(x: Tensor, *, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    out = torch.diagonal(x, offset, dim1, dim2).sum(-1)
    return out.reshape(1) if out.dim() == 0 else out


@op("tril_triu", "X", lod="none")
def tril_triu(x: Tensor, *, diagonal: int = 0, lower: bool = True) -> Tensor:
    return torch.tril(x, diagonal) if lower else torch.triu(x, diagonal)


@op("diag", "Diagonal", lod="none")
def diag(x: Tensor) -> Tensor:
    return torch.diag(x.reshape(-1))


@op("diag_embed", "Input", lod="none")
def diag_embed(x: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    return torch.diag_embed(x, offset, dim1, dim2)


@op("meshgrid", "X*", "Out*", lod="none")
def meshgrid(tensors: list[Tensor]) -> list[list[Tensor]]:
    return [list(torch.meshgrid(*(t.reshape(-1) for t in tensors), indexing="ij"))]


@op("logsumexp", "X", lod="none")
def logsumexp_op(x: Tensor, *, dim: Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    axes = tuple(range(x.dim())) if dim is None else tuple(dim)
    out = torch.logsumexp(x, axes, keepdim)
    return out.reshape(1) if out.dim() == 0 else out


@op("log_softmax", "X", shape=ALONG_AXIS)
def log_softmax_op(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.log_softmax(x, axis)


@op("allclose", "Input Other", lod="none")
def allclose_op(
    x: Tensor, y: Tensor, *, rtol: float, atol: float, equal_nan: bool = False
) -> Tensor:
    if x.is_meta:
        return torch.empty(1, dtype=torch.bool, device="meta")
    return torch.tensor([torch.allclose(x, y, rtol, atol, equal_nan)])


def _test(type: str, found: str) -> None:
    @op(type, "X", lod="none")
    def run(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return torch.full((1,), found == "finite", device=x.device)
        if found == "finite":
            return torch.isfinite(x).all().reshape(1)
        test = torch.isinf if found == "inf" else torch.isnan
        return test(x).any().reshape(1)


_test("isfinite", "finite")
_test("isinf", "inf")
_test("isnan", "nan")


@op("size", "Input", lod="none")
def size_op(x: Tensor) -> Tensor:
    return torch.full((1,), x.numel(), dtype=torch.int64, device=x.device)


def _padded(x: Shape, given: Shape | None, /, **settings: Any) -> list[Shape] | None:
    if given is None:
        return None
    is_last = settings.get("data_format") == "NHWC"
    return [(x[0], -1, -1, x[3]) if is_last else (x[0], x[1], -1, -1)]


@op("pad2d", "X Paddings?", lod="none", infer=_padded)
def pad2d(
    x: Tensor,
    padding_tensor: Tensor | None,
    *,
    paddings: Sequence[int] = (),
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
) -> Tensor:
    """Pad images. paddings: top, bottom, left, right; mode: "constant", "reflect" or "edge"."""
    if padding_tensor is not None:
        paddings = padding_tensor.tolist()
    above, below, left, right = paddings
    picture = x.movedim(-1, 1) if data_format == "NHWC" else x
    sides = [left, right, above, below]
    if mode == "constant":
        picture = torch.nn.functional.pad(picture, sides, value=pad_value)
    else:
        kind = {"reflect": "reflect", "edge": "replicate"}[mode]
        picture = torch.nn.functional.pad(picture, sides, mode=kind)
    return picture.movedim(1, -1) if data_format == "NHWC" else picture


@op("pad_constant_like", "X Y", lod="none")
def pad_constant_like(x: Tensor, y: Tensor, *, pad_value: float = 0.0) -> Tensor:
    """Pad y at the end of each axis to the shape of x."""
    sides = [n for a, b in reversed(list(zip(x.shape, y.shape, strict=True))) for n in (0, a - b)]
    return torch.nn.functional.pad(y, sides, value=pad_value)


def _pair(
    helper: LayerHelper, type: str, x: Variable, y: Variable, slots: str = "X Y", **attrs: Any
) -> Variable:
    first, second = slots.split()
    inputs = {first: helper.check_input(x, "x"), second: helper.check_input(y, "y")}
    return helper.add(type, inputs, attrs, dtype=x.dtype)


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
    """Compute x W_i y + b_i with `size` learned matrices: x [N, M], y [N, K] -> [N, size]."""
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
    """Return the mean product, over pixels, of each channel of x and each channel of y: [N, C1,
    C2].
    """
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
    """Return beta * input + alpha * (x @ y)."""
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
    """Return input + value * tensor1 * tensor2."""
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
    """Multiply batches of matrices: [B, N, M] by [B, M, K]."""
    return _pair(LayerHelper("bmm", name), "bmm", x, y)


@layer
def dot(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return the dot product over the last axis, which is kept with size 1."""
    return _pair(LayerHelper("dot", name), "dot", x, y)


@layer
def cross(input: Variable, other: Variable, dim: int | None = None) -> Variable:
    """Return the cross product along an axis of size 3, by default the first such axis."""
    return _pair(LayerHelper("cross"), "cross", input, other, dim=dim)


@layer
def kron(
    x: Variable, y: Variable, out: Variable | None = None, name: str | None = None
) -> Variable:
    """Return the Kronecker product."""
    helper = LayerHelper("kron", name)
    return _given(helper, _pair(helper, "kron", x, y), out)


@layer
def dist(x: Variable, y: Variable, p: float = 2) -> Variable:
    """Return the p-norm of the difference: [1]."""
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
    """Return whether both tensors are equal within a tolerance: bool[1]."""
    helper = LayerHelper("allclose", name)
    attrs = op_settings("allclose", locals())
    return _pair(helper, "allclose", input, other, "Input Other", **attrs)


@layer
def elementwise_equal(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return whether elements are equal: bool."""
    return _pair(LayerHelper("elementwise_equal", name), "equal", x, y)


@layer
def t(input: Variable, name: str | None = None) -> Variable:
    """Transpose a matrix; return a vector unchanged."""
    helper = LayerHelper("t", name)
    axes = len(helper.check_input(input).shape)
    if axes > 2:
        raise helper.refuse(f"input must be a matrix or a vector, got {input}")
    return helper.add("transpose2", {"X": input}, {"axis": [1, 0]}) if axes == 2 else input


@layer
def clamp(
    input: Variable,
    min: float | Variable | None = None,
    max: float | Variable | None = None,
    output: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Clip each element to min and max, each a number, a one-element variable, or None."""
    helper = LayerHelper("clamp", name)
    if min is None and max is None:
        raise helper.refuse("min or max must be given")
    inputs, attrs = {"X": helper.check_input(input)}, {"min": -math.inf, "max": math.inf}
    for limit, given in (("min", min), ("max", max)):
        if isinstance(given, Variable):
            inputs[limit.capitalize()] = given
        elif given is not None:
            attrs[limit] = float(given)
    return _given(helper, helper.add("clip", inputs, attrs), output)


@layer
def clip_by_norm(x: Variable, max_norm: float, name: str | None = None) -> Variable:
    """Scale x down if its norm exceeds max_norm."""
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
    """Return whether all elements are finite: bool[1]."""
    return _true_of("isfinite", x)


@layer
def has_inf(x: Variable) -> Variable:
    """Return whether any element is infinite: bool[1]."""
    return _true_of("isinf", x)


@layer
def has_nan(x: Variable) -> Variable:
    """Return whether any element is NaN: bool[1]."""
    return _true_of("isnan", x)


@layer
def rank(input: Variable) -> Variable:
    """Return the number of axes, as an int32 variable."""
    helper = LayerHelper("rank")
    return assign(np.array(len(helper.check_input(input).shape), dtype=np.int32))


@layer
def size(input: Variable) -> Variable:
    """Return the number of elements: int64[1]."""
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
    """Return log(sum(exp(x))) over the given axes, or over all axes if `dim` is None."""
    helper = LayerHelper("logsumexp", name)
    axes = [dim] if isinstance(dim, int) else None if dim is None else list(dim)
    attrs = {"dim": axes, "keepdim": keepdim}
    return _given(helper, helper.add("logsumexp", {"X": helper.check_input(x, "x")}, attrs), out)


@layer
def log_softmax(
    input: Variable, axis: int | None = None, dtype: Any = None, name: str | None = None
) -> Variable:
    """Return log(softmax(x)) along an axis."""
    helper = LayerHelper("log_softmax", name)
    x = helper.check_input(input) if dtype is None else input.astype(dtype)
    helper.skip_names(1)  # for the softmax
    return helper.add("log_softmax", {"X": x}, {"axis": -1 if axis is None else axis})
