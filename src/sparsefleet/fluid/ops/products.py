"""Products of matrices."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from sparsefleet.fluid.lowering.registry import op

Tensor = torch.Tensor


@op("mul", "X Y")
def mul(x: Tensor, y: Tensor, *, x_num_col_dims: int = 1, y_num_col_dims: int = 1) -> Tensor:
    """The product of two tensors seen as matrices: so many first sizes are rows."""
    rows, columns = x.shape[:x_num_col_dims], y.shape[y_num_col_dims:]
    left = x.reshape(math.prod(rows), math.prod(x.shape[x_num_col_dims:]))
    right = y.reshape(math.prod(y.shape[:y_num_col_dims]), math.prod(columns))
    return (left @ right).reshape(*rows, *columns)


@op("mul_add", "X Y Bias")
def mul_add(
    x: Tensor, y: Tensor, bias: Tensor, *, x_num_col_dims: int = 1, y_num_col_dims: int = 1
) -> Tensor:
    """`mul` by a matrix, and a bias added to each row: in one pass."""
    del y_num_col_dims  # of a matrix, 1
    left = x.reshape(-1, math.prod(x.shape[x_num_col_dims:]))
    return torch.addmm(bias, left, y).reshape(*x.shape[:x_num_col_dims], y.shape[1])


@op("matmul", "X Y")
def matmul(
    x: Tensor,
    y: Tensor,
    *,
    transpose_X: bool = False,  # noqa: N803  Fluid's name
    transpose_Y: bool = False,  # noqa: N803
    alpha: float = 1.0,
) -> Tensor:
    x = x.mT if transpose_X and x.dim() > 1 else x
    y = y.mT if transpose_Y and y.dim() > 1 else y
    product = torch.matmul(x, y)
    product = product.reshape(1) if product.dim() == 0 else product
    return product if alpha == 1.0 else product * alpha


@op("cos_sim", "X Y")
def cos_sim(x: Tensor, y: Tensor) -> Tensor:
    """Of each row of x with that of y, or with the one row that y has: [N, 1]."""
    return functional.cosine_similarity(x, y.expand_as(x), dim=-1, eps=1e-12).unsqueeze(-1)


@op("l2_normalize", "X", lod="none")
def l2_normalize(x: Tensor, *, axis: int, epsilon: float = 1e-12) -> Tensor:
    return x / torch.sqrt(x.square().sum(axis, keepdim=True) + epsilon)
