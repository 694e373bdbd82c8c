"""The backward operator, gradient clipping and loss scaling."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sparsefleet.collective.mixed_precision import LossScaler
from sparsefleet.collective.strategy import AmpConfig
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
