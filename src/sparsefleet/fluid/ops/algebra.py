"""Products of vectors and matrices, and parts of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparsefleet.fluid.lowering.registry import op

Tensor = torch.Tensor


@op("bilinear_tensor_product", "X Y Weight Bias?")
def bilinear_tensor_product(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W_i y + b_i for each i: x [N, M], y [N, K], weight [S, M, K] -> [N, S]."""
    out = torch.einsum("nm,smk,nk->ns", x, weight, y)
    return out if bias is None else out + bias


@op("fsp", "X Y", lod="none")
def fsp(x: Tensor, y: Tensor) -> Tensor:
    """The mean product of each channel of x with each of y: [N, C1, C2]."""
    left, right = x.flatten(2), y.flatten(2)
    return left @ right.mT / left.shape[2]


@op("addmm", "Input X Y", lod="none")
def addmm(given: Tensor, x: Tensor, y: Tensor, *, Alpha: float, Beta: float) -> Tensor:  # noqa: N803
    return Beta * given + Alpha * (x @ y)


@op("bmm", "X Y", lod="none")
def bmm(x: Tensor, y: Tensor) -> Tensor:
    return torch.bmm(x, y)


@op("dot", "X Y", lod="none")
def dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1, keepdim=True)


@op("cross", "X Y", lod="none")
def cross(x: Tensor, y: Tensor, *, dim: int | None = None) -> Tensor:
    axis = next(i for i, size in enumerate(x.shape) if size == 3) if dim is None else dim
    made: Tensor = torch.linalg.cross(x, y, dim=axis)
    return made


@op("kron", "X Y", lod="none")
def kron(x: Tensor, y: Tensor) -> Tensor:
    return torch.kron(x, y)


@op("dist", "X Y", lod="none")
def dist(x: Tensor, y: Tensor, *, p: float = 2.0) -> Tensor:
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
def logsumexp(x: Tensor, *, dim: Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    axes = tuple(range(x.dim())) if dim is None else tuple(dim)
    out = torch.logsumexp(x, axes, keepdim)
    return out.reshape(1) if out.dim() == 0 else out


@op("log_softmax", "X")
def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.log_softmax(x, axis)


@op("allclose", "Input Other", lod="none")
def allclose(x: Tensor, y: Tensor, *, rtol: float, atol: float, equal_nan: bool = False) -> Tensor:
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
def size(x: Tensor) -> Tensor:
    return torch.full((1,), x.numel(), dtype=torch.int64, device=x.device)


@op("pad2d", "X", lod="none")
def pad2d(
    x: Tensor,
    *,
    paddings: Sequence[int],
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
) -> Tensor:
    """paddings: above, below, left, right; mode: "constant", "reflect" or "edge"."""
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
    """y with values put behind, so that it is as large as x."""
    sides = [n for a, b in reversed(list(zip(x.shape, y.shape, strict=True))) for n in (0, a - b)]
    return torch.nn.functional.pad(y, sides, value=pad_value)
