"""Updates of parameters, in place, by the formulas of Fluid.

Letters: p parameter, g gradient, rate learning rate float32[1].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.sparse_parameter import SparseParameter

Tensor = torch.Tensor


def _update(type: str, inputs: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An operator that changes its inputs, without autograd; nothing if there is no gradient."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def update(p: Tensor, g: Tensor | None, *states: Tensor, **settings: Any) -> None:
            if g is not None:
                with torch.no_grad():
                    function(p, g, *states, **settings)

        names = "Param Grad LearningRate " + inputs
        return op(type, names.strip(), "ParamOut", lod="none", in_place=True)(update)

    return register


@op("push_table", "Param Grad LearningRate", "ParamOut", lod="none", in_place=True)
def push_table(param: SparseParameter, gradient: Any, rate: Tensor) -> None:
    if gradient is not None:
        param.push(gradient, float(rate))


@_update("sgd", "")
def sgd(p: Tensor, g: Tensor, rate: Tensor) -> None:
    p.data.sub_(g, alpha=float(rate))


@_update("momentum", "Velocity")
def momentum(
    p: Tensor, g: Tensor, rate: Tensor, velocity: Tensor, *, mu: float, use_nesterov: bool = False
) -> None:
    velocity.mul_(mu).add_(g)
    p.data.sub_(g.add(velocity, alpha=mu) if use_nesterov else velocity, alpha=float(rate))


@_update("lars_momentum", "Velocity")
def lars_momentum(
    p: Tensor,
    g: Tensor,
    rate: Tensor,
    velocity: Tensor,
    *,
    mu: float,
    lars_coeff: float,
    lars_weight_decay: float,
) -> None:
    long, steep = p.data.norm(), g.norm()
    local = rate
    if long > 0 and steep > 0:
        local = rate * lars_coeff * long / (steep + lars_weight_decay * long)
    velocity.mul_(mu).add_(local * (g + lars_weight_decay * p.data))
    p.data.sub_(velocity)


@_update("adagrad", "Moment")
def adagrad(p: Tensor, g: Tensor, rate: Tensor, moment: Tensor, *, epsilon: float) -> None:
    moment.addcmul_(g, g)
    p.data.addcdiv_(g, moment.sqrt().add_(epsilon), value=-float(rate))


@_update("adadelta", "AvgSquaredGrad AvgSquaredUpdate")
def adadelta(
    p: Tensor,
    g: Tensor,
    rate: Tensor,
    squares: Tensor,
    steps: Tensor,
    *,
    epsilon: float,
    rho: float,
) -> None:
    del rate
    squares.mul_(rho).addcmul_(g, g, value=1 - rho)
    step = ((steps + epsilon) / (squares + epsilon)).sqrt_().mul_(g)
    steps.mul_(rho).addcmul_(step, step, value=1 - rho)
    # 1.8.5's: by the mean that this step is in already, not the one before it as in the paper.
    p.data.sub_(((steps + epsilon) / (squares + epsilon)).sqrt_().mul_(g))


@_update("decayed_adagrad", "Moment")
def decayed_adagrad(
    p: Tensor, g: Tensor, rate: Tensor, moment: Tensor, *, decay: float, epsilon: float
) -> None:
    moment.mul_(decay).add_((1 - decay) * g * g)
    p.data.sub_(rate * g / (moment.sqrt() + epsilon))


@_update("adam", "Moment1 Moment2 Beta1Pow Beta2Pow")
def adam(
    p: Tensor,
    g: Tensor,
    rate: Tensor,
    moment1: Tensor,
    moment2: Tensor,
    beta1_pow: Tensor,
    beta2_pow: Tensor,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> None:
    moment1.mul_(beta1).add_(g, alpha=1 - beta1)
    moment2.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    step = float(rate * (1 - beta2_pow).sqrt() / (1 - beta1_pow))
    p.data.addcdiv_(moment1, moment2.sqrt().add_(epsilon), value=-step)
    beta1_pow.mul_(beta1)
    beta2_pow.mul_(beta2)


@_update("adamax", "Moment InfNorm Beta1Pow")
def adamax(
    p: Tensor,
    g: Tensor,
    rate: Tensor,
    moment: Tensor,
    inf_norm: Tensor,
    beta1_pow: Tensor,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> None:
    moment.mul_(beta1).add_((1 - beta1) * g)
    torch.maximum(g.abs(), beta2 * inf_norm + epsilon, out=inf_norm)
    p.data.sub_(rate / (1 - beta1_pow) * moment / inf_norm)
    beta1_pow.mul_(beta1)


@_update("rmsprop", "MeanSquare MeanGrad Moment")
def rmsprop(
    p: Tensor,
    g: Tensor,
    rate: Tensor,
    mean_square: Tensor,
    mean_grad: Tensor,
    moment: Tensor,
    *,
    decay: float,
    epsilon: float,
    momentum: float,
    centered: bool = False,
) -> None:
    mean_square.mul_(decay).add_((1 - decay) * g * g)
    spread = mean_square
    if centered:
        mean_grad.mul_(decay).add_((1 - decay) * g)
        spread = mean_square - mean_grad * mean_grad
    moment.mul_(momentum).add_(rate * g / (spread + epsilon).sqrt())
    p.data.sub_(moment)


@_update("ftrl", "SquaredAccumulator LinearAccumulator")
def ftrl(
    p: Tensor,
    g: Tensor,
    rate: Tensor,
    squares: Tensor,
    linear: Tensor,
    *,
    l1: float,
    l2: float,
    lr_power: float,
) -> None:
    grown = squares + g * g
    linear.add_(g - (grown.pow(-lr_power) - squares.pow(-lr_power)) / rate * p.data)
    denominator = grown.pow(-lr_power) / rate + l2  # 1.8.5's, not the 2 * l2 of the paper
    shrunk = (l1 * linear.sign() - linear) / denominator
    p.data.copy_(torch.where(linear.abs() > l1, shrunk, torch.zeros_like(p.data)))
    squares.copy_(grown)


@_update("lamb", "Moment1 Moment2")
def lamb(
    p: Tensor,
    g: Tensor,
    rate: Tensor,
    moment1: Tensor,
    moment2: Tensor,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> None:
    moment1.mul_(beta1).add_((1 - beta1) * g)
    moment2.mul_(beta2).add_((1 - beta2) * g * g)
    step = moment1 / (moment2.sqrt() + epsilon) + weight_decay * p.data
    long, wide = p.data.norm(), step.norm()
    trust = long / wide if long > 0 and wide > 0 else 1.0
    p.data.sub_(rate * trust * step)
