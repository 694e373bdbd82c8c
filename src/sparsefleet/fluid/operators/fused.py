"""Fuse an operator with the activation that follows it.

The intermediate result is not kept; the backward pass starts from the activation's result. In
programs that run long enough, each pass becomes one kernel if torch.compile can generate it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from sparsefleet.collective.module_preparation import can_compile, warn_fusion_is_off
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.operators.elementwise import fit_second

Tensor = torch.Tensor
Act = Callable[[Tensor], Tensor]


COMPILE_AFTER_S = 20.0
"""Total time of uncompiled calls before a function is compiled, about the time to compile it."""


def _of_sign(below: float) -> Act:
    return lambda y: torch.where(y > 0, 1.0, below)


FUSED_ACTIVATIONS: dict[str, tuple[str | None, float, Callable[[float], Act], Callable[..., Act]]]
FUSED_ACTIVATIONS = {
    "elu": (
        "alpha",
        1.0,
        lambda alpha: lambda x: torch.nn.functional.elu(x, alpha),
        lambda alpha: lambda y: torch.where(y > 0, 1.0, y + alpha),
    ),
    "leaky_relu": (
        "alpha",
        0.02,
        lambda alpha: lambda x: torch.where(x > 0, x, x * alpha),
        lambda alpha: _of_sign(alpha),
    ),
    "relu": (None, 0.0, lambda _: torch.relu, lambda _: _of_sign(0.0)),
    "relu6": (
        "threshold",
        6.0,
        lambda most: lambda x: x.clamp(0.0, most),
        lambda most: lambda y: torch.where((y > 0) & (y < most), 1.0, 0.0),
    ),
    "sigmoid": (None, 0.0, lambda _: torch.sigmoid, lambda _: lambda y: y * (1 - y)),
    "tanh": (None, 0.0, lambda _: torch.tanh, lambda _: lambda y: 1 - y * y),
}
"""Activation -> (setting, default, function, slope), if the result determines the slope."""


@op("fused_elemwise_activation", "X Y")
def fused_elemwise_activation(
    x: Tensor, y: Tensor, *, axis: int = -1, act: str, number: float = 0.0
) -> Tensor:
    """Apply an activation to x + y; `number` is the activation's parameter, such as a slope."""
    made: Tensor = _AddAct.apply(x, fit_second(x, y, axis), act, number)  # type: ignore[no-untyped-call]
    return made


class _AddAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, act: str, number: float) -> Tensor:
        made: Tensor = _add_kernels(act, number)[0](x, y)
        ctx.save_for_backward(made)
        ctx.known = (x.shape, y.shape, act, number)
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        (made,), (x_shape, y_shape, act, number) = ctx.saved_tensors, ctx.known
        slope = _add_kernels(act, number)[1](gradient, made)
        return slope.sum_to_size(x_shape), slope.sum_to_size(y_shape), None, None


@cache
def _add_kernels(act: str, number: float) -> tuple[Callable[..., Any], Callable[..., Any]]:
    activate, slope_of = (make(number) for make in FUSED_ACTIVATIONS[act][2:])
    return (
        _one_kernel(lambda x, y: activate(x + y)),
        _one_kernel(lambda gradient, made: gradient * slope_of(made)),
    )


@op("fused_batch_norm_act", "X Scale Bias Mean Variance", "Y MeanOut VarianceOut")
def fused_batch_norm_act(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    is_test: bool = False,
    use_global_stats: bool = False,
    data_layout: str = "NCHW",
    act: str,
    number: float = 0.0,
) -> list[Tensor]:
    """Apply `batch_norm`, then an activation; `number` is the activation's parameter, such as a
    slope.
    """
    channels = 1 if data_layout == "NCHW" else x.dim() - 1
    is_given = is_test or use_global_stats
    how = (channels, epsilon, is_given, act, number)
    y, batch_mean, batch_variance = _NormAct.apply(x, scale, bias, mean, variance, how)  # type: ignore[no-untyped-call]
    if is_given:
        return [y, mean, variance]
    new_mean = mean * momentum + batch_mean * (1 - momentum)
    return [y, new_mean, variance * momentum + batch_variance * (1 - momentum)]


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
        *states, how = given
        y, mean, variance = _norm_kernels(x.dim(), *how)[0](x, *states)
        ctx.save_for_backward(x, states[0], mean, variance, y)
        ctx.how = how
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *others: Tensor) -> tuple[Any, ...]:
        del others
        x = ctx.saved_tensors[0]
        found = _norm_kernels(x.dim(), *ctx.how)[1](gradient, *ctx.saved_tensors)
        return (*found, None, None, None)


@cache
def _norm_kernels(
    rank: int, channels: int, epsilon: float, is_given: bool, act: str, number: float
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    activate, slope_of = (make(number) for make in FUSED_ACTIVATIONS[act][2:])
    axes = [axis for axis in range(rank) if axis != channels]
    shape = [1 if axis != channels else -1 for axis in range(rank)]

    def forward(x: Tensor, scale: Tensor, bias: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        mean, variance = states
        wide = x.to(scale.dtype)
        if not is_given:
            variance, mean = torch.var_mean(wide, axes, correction=0)
        factor = scale * torch.rsqrt(variance + epsilon)
        y = (wide - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)
        return activate(y).to(x.dtype), mean.clone(), variance.clone()

    def backward(gradient: Tensor, x: Tensor, scale: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
        mean, variance, y = kept
        slope = gradient.to(scale.dtype) * slope_of(y.to(scale.dtype))
        inverse = torch.rsqrt(variance + epsilon)
        normal = (x.to(scale.dtype) - mean.reshape(shape)) * inverse.reshape(shape)
        of_bias, of_scale = slope.sum(axes), (slope * normal).sum(axes)
        if not is_given:
            share = scale.numel() / x.numel()
            means = (of_bias * share).reshape(shape), (of_scale * share).reshape(shape)
            slope = slope - means[0] - normal * means[1]
        return (slope * (scale * inverse).reshape(shape)).to(x.dtype), of_scale, of_bias

    return _one_kernel(forward), _one_kernel(backward)


def _one_kernel(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that compiles itself once its calls have taken `COMPILE_AFTER_S`.

    If the compiler fails, the function stays uncompiled.
    """
    return _Kernel(plain) if can_compile() else plain


class _Kernel:
    def __init__(self, plain: Callable[..., Any]) -> None:
        self._plain = self._run = plain
        self._left_s = COMPILE_AFTER_S

    def __call__(self, *inputs: Tensor) -> Any:
        if self._left_s > 0:
            began = time.perf_counter()
            found = self._plain(*inputs)
            self._left_s -= time.perf_counter() - began
            return found
        if self._left_s > -math.inf:  # several threads may get here; the first one compiles
            self._left_s, self._run = -math.inf, torch.compile(self._plain, dynamic=True)
        try:
            return self._run(*inputs)
        except _compiler_error() as error:
            warn_fusion_is_off(f"the compiler failed ({str(error).strip().partition(chr(10))[0]})")
            self._run = self._plain
            return self._plain(*inputs)


def _compiler_error() -> type[Exception]:
    """Return the compiler's error class. Imported only after an error, as the module is large."""
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException
