"""How wrong a prediction is; labels get no gradient. Letters: N examples, C classes."""

from __future__ import annotations

import torch
from torch.nn import functional

from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.ops.cut_logits import cut_logits

Tensor = torch.Tensor


def check_same_shape(x: Tensor, *others: Tensor) -> None:
    """ValueError unless all shapes are equal: broadcasting would hide, say, a short batch.

    Sizes that stand in for unknown ones, while a program is built, are not compared.
    """
    for other in others:
        if x.shape != other.shape and not x.is_meta:
            raise ValueError(f"its inputs must have one shape, got {[*x.shape]}, {[*other.shape]}")


def _column(x: Tensor, label: Tensor, axis: int) -> Tensor:
    """The labels int64[..., 1] with which to take one element of each of x's rows."""
    if label.is_floating_point():
        raise TypeError("labels that are not soft must be int64: cast them, or set soft_label")
    index = label.long()
    index = index if index.dim() == x.dim() else index.unsqueeze(axis)
    wanted = list(x.shape)
    wanted[axis] = 1
    if list(index.shape) != wanted and not x.is_meta:
        raise ValueError(f"for {[*x.shape]} labels must be {wanted}, got {[*label.shape]}")
    return index


@op("cross_entropy", "X Label", "Y")
def cross_entropy(
    x: Tensor, label: Tensor, *, soft_label: bool = False, ignore_index: int = -100
) -> Tensor:
    """x: probabilities [..., C]; label: int64[..., 1], or with soft_label as x -> [..., 1]."""
    if soft_label:
        check_same_shape(x, label)
        return -(label.detach() * _log(x)).sum(-1, keepdim=True)
    index = _column(x, label, -1)
    ignored = index == ignore_index
    loss = -_log(x.gather(-1, index.masked_fill(ignored, 0)))
    return loss.masked_fill(ignored, 0.0)


def _log(x: Tensor) -> Tensor:
    """log, with the -1e20 that Fluid has for that of 0."""
    return torch.where(x > 0, x.clamp(min=torch.finfo(x.dtype).tiny).log(), -1e20)


@op("softmax_with_cross_entropy", "Logits Label", "Softmax Loss")
def softmax_with_cross_entropy(
    logits: Tensor,
    label: Tensor,
    *,
    soft_label: bool = False,
    ignore_index: int = -100,
    axis: int = -1,
) -> list[Tensor]:
    logits = cut_logits(logits, axis)
    logarithms = torch.log_softmax(logits, axis)
    if soft_label:
        check_same_shape(logits, label)
        loss = -(label.detach() * logarithms).sum(axis, keepdim=True)
    else:
        index = _column(logits, label, axis)
        ignored = index == ignore_index
        loss = -logarithms.gather(axis, index.masked_fill(ignored, 0))
        loss = loss.masked_fill(ignored, 0.0)
    return [torch.softmax(logits, axis), loss]


@op("sigmoid_cross_entropy_with_logits", "X Label")
def sigmoid_cross_entropy_with_logits(
    x: Tensor, label: Tensor, *, ignore_index: int = -100, normalize: bool = False
) -> Tensor:
    ignored = label == ignore_index
    loss = functional.binary_cross_entropy_with_logits(
        x, label.detach().to(x.dtype), reduction="none"
    )
    loss = loss.masked_fill(ignored, 0.0)
    return loss / (~ignored).sum().clamp(min=1) if normalize else loss


@op("log_loss", "Predicted Labels", "Loss")
def log_loss(x: Tensor, label: Tensor, *, epsilon: float = 1e-4) -> Tensor:
    check_same_shape(x, label)
    label = label.detach()
    return -label * torch.log(x + epsilon) - (1 - label) * torch.log(1 - x + epsilon)


@op("huber_loss", "X Y")
def huber_loss(x: Tensor, y: Tensor, *, delta: float) -> Tensor:
    check_same_shape(x, y)
    return functional.huber_loss(x, y, reduction="none", delta=delta)


@op("bpr_loss", "X Label", "Y")
def bpr_loss(x: Tensor, label: Tensor) -> Tensor:
    """Bayesian personalised ranking: the mean over the other classes of -log sigmoid(x+ - x)."""
    index = _column(x, label, -1)
    others = functional.logsigmoid(x.gather(1, index) - x)
    total = others.sum(1, keepdim=True) - others.gather(1, index)
    return -total / (x.shape[1] - 1)


@op("label_smooth", "X PriorDist?")
def label_smooth(x: Tensor, prior: Tensor | None, *, epsilon: float = 0.1) -> Tensor:
    spread = prior if prior is not None else 1.0 / x.shape[-1]
    return (1 - epsilon) * x + epsilon * spread
