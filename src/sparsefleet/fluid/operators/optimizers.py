"""In-place parameter updates with Fluid's formulas.

In formulas, p is the parameter and g the gradient; rate is the learning rate, float32[1].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import Any

import torch

from sparsefleet.fluid.framework.sparse_parameter import SparseParameter
from sparsefleet.fluid.lowering.registry import op

Tensor = torch.Tensor

# Most values in a sum; then a new sum is started, so that small values are not lost.
_MOST_IN_A_SUM = 16384

# Threads in a pass over a Dataset share parameters. An update that starts in the middle of another
# could divide a moment that includes the first gradient by the root of one that does not include it
# yet, which would be a huge step. A parameter's address selects its lock.
_locks = [Lock() for _ in range(61)]


@op(
    "average_accumulates",
    "Param Sum1 Sum2 Sum3 NumAccumulates OldNumAccumulates NumUpdates",
    "SumOut",
    lod="none",
    in_place=True,
)
@torch.no_grad()
def average_accumulates(
    param: Tensor,
    sum_1: Tensor,
    sum_2: Tensor,
    sum_3: Tensor,
    count: Tensor,
    old_count: Tensor,
    updates: Tensor,
    *,
    average_window: float,
    min_average_window: int,
    max_average_window: int,
) -> None:
    """Add the parameter to sum_1, move earlier sums to sum_2, and a full window to sum_3."""
    updates.add_(1)
    count.add_(1)
    sum_1.add_(param.data)
    if int(updates) % _MOST_IN_A_SUM == 0:
        sum_2.add_(sum_1)
        sum_1.zero_()
    window = min(max_average_window, int(int(updates) * average_window))
    if int(count) >= max(min_average_window, window):
        sum_3.copy_(sum_1 + sum_2)
        sum_1.zero_()
        sum_2.zero_()
        old_count.copy_(count)
        count.zero_()


@op("moving_average", "Average Param Decay", "AverageOut", lod="none", in_place=True)
@torch.no_grad()
def moving_average(average: Tensor, param: Tensor, decay: Tensor) -> None:
    average.mul_(decay).add_(param.data * (1 - decay))


@op("unbiased_average", "Average Decay Step", "AverageOut", lod="none", in_place=True)
@torch.no_grad()
def unbiased_average(average: Tensor, decay: Tensor, step: Tensor) -> None:
    """Correct, in place, the bias of a moving average that started at 0."""
    if int(step) > 0:
        average.div_(1 - decay ** step.float())


@op("lookahead", "Param Slow Step K Alpha", "ParamOut", lod="none", in_place=True)
@torch.no_grad()
def lookahead(param: Tensor, slow: Tensor, step: Tensor, k: Tensor, alpha: Tensor) -> None:
    """Every k steps, move the slow value towards the parameter, then copy it to the parameter."""
    if int(step) % int(k) == 0:
        slow.copy_(param.data * alpha + slow * (1 - alpha))
        param.data.copy_(slow)


@op("scheduled_average_decay", "Steps", lod="none")
def scheduled_average_decay(steps: Tensor, *, decay: float) -> Tensor:
    """Return the decay, reduced in the first steps.

    As in Fluid, integer `steps` do not reduce it.
    """
    if not steps.is_floating_point():
        return torch.full(steps.shape, decay, device=steps.device)
    return ((steps + 1.0) / (steps + 10.0)).clamp(max=decay)


def _update(type: str, inputs: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register an in-place update without autograd, which does nothing if there is no gradient.

    Updates of the same parameter by several threads run one after the other.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def update(p: Tensor, g: Tensor | None, *states: Tensor, **settings: Any) -> None:
            if g is not None:
                with torch.no_grad(), _locks[p.data_ptr() // 64 % len(_locks)]:
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
    # As in 1.8.5, uses the mean that includes this step, not the previous mean as in the paper.
    p.data.sub_(((steps + epsilon) / (squares + epsilon)).sqrt_().mul_(g))


@_update("decayed_adagrad", "Moment")
def decayed_adagrad(
    p: Tensor, g: Tensor, rate: Tensor, moment: Tensor, *, decay: float, epsilon: float
) -> None:
    moment.mul_(decay).add_((1 - decay) * g * g)
    p.data.sub_(rate * g / (moment.sqrt() + epsilon))


@_update("adam", "Moment1 Moment2 Beta1Pow Beta2Pow Beta1Tensor? Beta2Tensor?")
def adam(
    p: Tensor,
    g: Tensor,
    rate: Tensor,
    moment1: Tensor,
    moment2: Tensor,
    beta1_pow: Tensor,
    beta2_pow: Tensor,
    beta1_tensor: Tensor | None = None,
    beta2_tensor: Tensor | None = None,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float,
) -> None:
    beta1 = beta1 if beta1_tensor is None else float(beta1_tensor)
    beta2 = beta2 if beta2_tensor is None else float(beta2_tensor)
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
    denominator = grown.pow(-lr_power) / rate + l2  # as in 1.8.5, not 2 * l2 as in the paper
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
