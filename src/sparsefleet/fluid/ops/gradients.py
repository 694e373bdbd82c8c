"""The backward pass, and what is done to gradients before the update.

A gradient is a tensor, the rows (keys, values) for a table, or None: then there is no update.
"""

from __future__ import annotations

from typing import Any

import torch

from sparsefleet.fluid.lowering.registry import op

Tensor = torch.Tensor


def _no_shapes(*shapes: object, **settings: object) -> list[tuple[int, ...]]:
    del shapes, settings  # gradients have those of what they are for
    return []


@op("backward", "Loss TargetGradient?", "Gradients*", lod="none", infer=_no_shapes)
def backward(
    loss: Tensor,
    target_gradient: Tensor | None,
    *,
    sources: list[Tensor],
    again: bool,
    into_rows: bool,
    scale: float = 1.0,
) -> list[Tensor]:
    """Gradients of the loss by `sources`.

    again: another backward pass follows. into_rows: leave gradients also at rows of tables.
    scale: the gradient of the loss itself, unless one is given.
    """
    first = torch.full_like(loss, scale) if target_gradient is None else target_gradient
    if not loss.requires_grad:
        return [torch.zeros_like(source) for source in sources]
    if not into_rows:
        return list(
            torch.autograd.grad(
                loss, sources, first, retain_graph=again, allow_unused=True, materialize_grads=True
            )
        )
    for source in sources:
        if not source.is_leaf:
            source.retain_grad()
    torch.autograd.backward(loss, first)
    return [torch.zeros_like(x) if x.grad is None else x.grad for x in sources]


@op("scale_gradient", "X Factor?", lod="none", infer=_no_shapes)
def scale_gradient(gradient: Any, factor: Tensor | None, *, scale: float = 1.0) -> Any:
    """A gradient, or the rows (keys, values) for a table, times a number."""
    number = scale if factor is None else float(factor) * scale
    if gradient is None:
        return None
    return (gradient[0], gradient[1] * number) if isinstance(gradient, tuple) else gradient * number


@op("clip_gradient", "X", lod="none", infer=_no_shapes)
def clip_gradient(gradient: Any, *, min: float, max: float) -> Any:
    """Each element into the range."""
    if gradient is None:
        return None
    if isinstance(gradient, tuple):
        return gradient[0], gradient[1].clip(min, max)
    return gradient.clamp(min, max)


@op("clip_by_norm", "X", lod="none", infer=_no_shapes)
def clip_by_norm(gradient: Any, *, max_norm: float) -> Any:
    """Made shorter if it is longer than max_norm."""
    if gradient is None:
        return None
    values = torch.from_numpy(gradient[1]) if isinstance(gradient, tuple) else gradient
    norm = float(values.norm())
    return gradient if norm <= max_norm else scale_gradient(gradient, None, scale=max_norm / norm)


@op("clip_factor", "X*", lod="none")
def clip_factor(squares: list[Tensor], *, max_norm: float) -> Tensor:
    """What makes gradients with these squared norms no longer than max_norm together: [1]."""
    norm = torch.stack([square.reshape(()) for square in squares]).sum().sqrt().reshape(1)
    return max_norm / norm.clamp(min=max_norm)


@op("decay_gradient", "Param Grad", lod="none", infer=_no_shapes)
def decay_gradient(
    param: Tensor, gradient: Tensor | None, *, l1: float = 0.0, l2: float = 0.0
) -> Tensor | None:
    """Adds the gradient of l1 * |w| + l2 / 2 * w * w."""
    if gradient is None:
        return None
    with torch.no_grad():
        return gradient + (l1 * param.sign() if l1 else l2 * param)


@op("merge_gradients", "X* Sums* Step", "Out*", lod="none", has_effect=True, infer=_no_shapes)
@torch.no_grad()
def merge_gradients(
    gradients: list[Tensor | None], sums: list[Tensor], step: Tensor, *, k_steps: int, avg: bool
) -> list[list[Tensor | None]]:
    """Adds gradients to sums; at each k_steps-th call these, or their means, else None for each.

    A call without gradients, as of a step that overflowed, does not count.
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
