"""Functions of each element."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.ops.cut_logits import cut_logits

Tensor = torch.Tensor

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs,
    "acos": torch.acos,
    "asin": torch.asin,
    "atan": torch.atan,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "erf": torch.erf,
    "exp": torch.exp,
    "floor": torch.floor,
    "log": torch.log,
    "logical_not": torch.logical_not,
    "logsigmoid": functional.logsigmoid,
    "reciprocal": torch.reciprocal,
    "relu": torch.relu,
    "round": torch.round,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "sin": torch.sin,
    "softplus": functional.softplus,
    "softsign": functional.softsign,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tanh": torch.tanh,
    "tanh_shrink": functional.tanhshrink,
}
"""Operators without settings."""


def _register(type: str, function: Callable[[Tensor], Tensor]) -> None:
    @op(type, "X")
    def run(x: Tensor) -> Tensor:
        return function(x)


for _type, _function in UNARY.items():
    _register(_type, _function)


@op("softmax", "X")
def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.softmax(cut_logits(x, axis), axis)


@op("leaky_relu", "X")
def leaky_relu(x: Tensor, *, alpha: float = 0.02) -> Tensor:
    return functional.leaky_relu(x, alpha)


@op("relu6", "X")
def relu6(x: Tensor, *, threshold: float = 6.0) -> Tensor:
    return x.clamp(0.0, threshold)


@op("elu", "X")
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return functional.elu(x, alpha)


@op("gelu", "X")
def gelu(x: Tensor, *, approximate: bool = False) -> Tensor:
    return functional.gelu(x, approximate="tanh" if approximate else "none")


@op("hard_sigmoid", "X")
def hard_sigmoid(x: Tensor, *, slope: float = 0.2, offset: float = 0.5) -> Tensor:
    return (slope * x + offset).clamp(0.0, 1.0)


@op("swish", "X")
def swish(x: Tensor, *, beta: float = 1.0) -> Tensor:
    return x * torch.sigmoid(beta * x)


@op("brelu", "X")
def brelu(x: Tensor, *, t_min: float = 0.0, t_max: float = 24.0) -> Tensor:
    return x.clamp(t_min, t_max)


@op("soft_relu", "X")
def soft_relu(x: Tensor, *, threshold: float = 40.0) -> Tensor:
    return torch.log1p(torch.exp(x.clamp(-threshold, threshold)))


@op("dropout", "X", lod="share")
def dropout(
    x: Tensor,
    *,
    dropout_prob: float,
    is_test: bool = False,
    dropout_implementation: str = "downgrade_in_infer",
    generator: torch.Generator | None = None,
) -> Tensor:
    upscale = dropout_implementation == "upscale_in_train"
    keep = 1.0 - dropout_prob
    if is_test:
        return x if upscale else x * keep
    if x.is_meta:
        return torch.empty_like(x)
    mask = (torch.rand(x.shape, generator=generator, device=x.device) >= dropout_prob).to(x.dtype)
    return x * mask / keep if upscale and keep > 0 else x * mask
