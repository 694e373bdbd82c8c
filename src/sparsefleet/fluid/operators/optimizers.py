"""The operators of training: backward, gradient clipping, loss scaling and updates."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import Any

import numpy as np
import torch

from sparsefleet.collective.module_preparation import LossScaler
from sparsefleet.collective.strategy import AmpConfig
from sparsefleet.fluid.framework.sparse_parameter import SparseParameter
from sparsefleet.fluid.lowering.registry import Shape, op

# The backward pass, and the processing of gradients before the update.
#
# A gradient is a tensor, (keys, values) for the rows of a table, or None if there is no update.


Tensor = torch.Tensor


def _no_shapes(*shapes: object, **settings: object) -> list[tuple[int, ...]]:
    del shapes, settings  # gradients have the shapes of their variables
    return []


@op("backward", "Loss TargetGradient?", "Gradients*", lod="none", infer=_no_shapes)
def backward(
    loss: Tensor,
    target_gradient: Tensor | None,
    *,
    sources: list[Tensor],
    again: bool,
    into_rows: bool,
    has_gradients: bool = False,
    scale: float = 1.0,
) -> list[Tensor]:
    """Compute gradients of the loss with respect to `sources`.

    again: whether another backward pass follows. into_rows: whether table rows also get gradients.
    has_gradients: whether the result is part of another loss.
    scale: the initial gradient of the loss, unless `target_gradient` is given.
    """
    first = torch.full_like(loss, scale) if target_gradient is None else target_gradient
    if not loss.requires_grad:
        return [torch.zeros_like(source) for source in sources]
    if not into_rows:
        return list(
            torch.autograd.grad(
                loss,
                sources,
                first,
                retain_graph=again,
                create_graph=has_gradients,
                allow_unused=True,
                materialize_grads=True,
            )
        )
    for source in sources:
        if not source.is_leaf:
            source.retain_grad()
    torch.autograd.backward(loss, first)
    return [torch.zeros_like(x) if x.grad is None else x.grad for x in sources]


@op("scale_gradient", "X Factor?", lod="none", infer=_no_shapes)
def scale_gradient(gradient: Any, factor: Tensor | None, *, scale: float = 1.0) -> Any:
    """Multiply a gradient, or a table's rows (keys, values), by a number."""
    number = scale if factor is None else float(factor) * scale
    if gradient is None:
        return None
    return (gradient[0], gradient[1] * number) if isinstance(gradient, tuple) else gradient * number


@op("clip_gradient", "X", lod="none", infer=_no_shapes)
def clip_gradient(gradient: Any, *, min: float, max: float) -> Any:
    """Clip each element of a gradient to min..max."""
    if gradient is None:
        return None
    if isinstance(gradient, tuple):
        return gradient[0], gradient[1].clip(min, max)
    return gradient.clamp(min, max)


@op("clip_by_norm", "X", lod="none", infer=_no_shapes)
def clip_by_norm(gradient: Any, *, max_norm: float) -> Any:
    """Scale a gradient down if its norm exceeds max_norm."""
    if gradient is None:
        return None
    values = torch.from_numpy(gradient[1]) if isinstance(gradient, tuple) else gradient
    norm = float(values.norm())
    return gradient if norm <= max_norm else scale_gradient(gradient, None, scale=max_norm / norm)


@op("clip_factor", "X*", lod="none")
def clip_factor(squares: list[Tensor], *, max_norm: float) -> Tensor:
    """Return the factor that limits the global norm to max_norm, given squared norms: [1]."""
    norm = torch.stack([square.reshape(()) for square in squares]).sum().sqrt().reshape(1)
    return max_norm / norm.clamp(min=max_norm)


@op("decay_gradient", "Param Grad", lod="none", infer=_no_shapes)
def decay_gradient(
    param: Tensor, gradient: Tensor | None, *, l1: float = 0.0, l2: float = 0.0
) -> Tensor | None:
    """Add weight decay to a gradient: the gradient of l1 * |w| + l2 / 2 * w * w."""
    if gradient is None:
        return None
    with torch.no_grad():
        return gradient + (l1 * param.sign() if l1 else l2 * param)


@op("merge_gradients", "X* Sums* Step", "Out*", lod="none", has_effect=True, infer=_no_shapes)
@torch.no_grad()
def merge_gradients(
    gradients: list[Tensor | None], sums: list[Tensor], step: Tensor, *, k_steps: int, avg: bool
) -> list[list[Tensor | None]]:
    """Add gradients to sums. Return the sums or means every k_steps calls, and None otherwise.

    A call without gradients, for example after an overflow, is not counted.
    """
    nothing: list[Tensor | None] = [None] * len(sums)
    if any(gradient is None for gradient in gradients):
        return [nothing]
    for total, gradient in zip(sums, gradients, strict=True):
        assert gradient is not None
        total.add_(gradient)
    step.add_(1)
    if int(step) < k_steps:
        return [nothing]
    step.zero_()
    merged: list[Tensor | None] = [total / k_steps if avg else total.clone() for total in sums]
    for total in sums:
        total.zero_()
    return [merged]


def _one(*shapes: Any, **settings: Any) -> list[Shape]:
    del shapes, settings
    return [(1,)]


@op("gradients_are_finite", "X*", lod="none", infer=_one)
def gradients_are_finite(gradients: list[Any]) -> Tensor:
    """Return whether all gradients, including table rows, are finite: bool[1]."""
    return torch.tensor([all(map(_is_finite, gradients))])


def _is_finite(gradient: Any) -> bool:
    if gradient is None:
        return True
    if isinstance(gradient, tuple):
        return bool(np.isfinite(gradient[1]).all())
    return bool(torch.isfinite(gradient).all())


@op("keep_if", "X Condition", lod="none", infer=_no_shapes)
def keep_if(gradient: Any, condition: Tensor) -> Any:
    """Return the gradient if the condition holds; otherwise None, which skips the update."""
    return gradient if bool(condition) else None


@op(
    "update_loss_scaling",
    "Finite LossScaling GoodSteps BadSteps",
    "LossScaling GoodSteps BadSteps",
    lod="none",
    has_effect=True,
)
def update_loss_scaling(
    finite: Tensor,
    scale: Tensor,
    good: Tensor,
    bad: Tensor,
    *,
    incr_every_n_steps: int,
    decr_every_n_nan_or_inf: int,
    incr_ratio: float,
    decr_ratio: float,
) -> list[Tensor]:
    """Return the loss scale and the counters of good and bad steps after a step.

    See `LossScaler`.
    """
    if finite.is_meta:
        return [scale, good, bad]
    scaler = LossScaler(
        AmpConfig(
            incr_every_n_steps=incr_every_n_steps,
            decr_every_n_nan_or_inf=decr_every_n_nan_or_inf,
            incr_ratio=incr_ratio,
            decr_ratio=decr_ratio,
        )
    )
    scaler.load_state_dict(
        {"loss_scaling": float(scale), "num_good_steps": int(good), "num_bad_steps": int(bad)}
    )
    scaler.update(is_finite=bool(finite))
    numbers = (scaler.scale, scaler.good_steps, scaler.bad_steps)
    return [torch.full_like(x, y) for x, y in zip((scale, good, bad), numbers, strict=True)]


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
