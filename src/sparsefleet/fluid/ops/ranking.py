"""How wrong scores, orders and distributions are. Letters: N examples, C classes, D width."""

from __future__ import annotations

import torch
from torch.nn import functional

from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.ops.losses import check_same_shape

Tensor = torch.Tensor


@op("rank_loss", "Label Left Right")
def rank_loss(label: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Burges et al. (2005): label 1 says that left comes first."""
    check_same_shape(left, right, label)
    ahead = left - right
    return functional.softplus(ahead) - label.detach() * ahead


@op("margin_rank_loss", "Label X1 X2")
def margin_rank_loss(label: Tensor, left: Tensor, right: Tensor, *, margin: float = 0.1) -> Tensor:
    check_same_shape(left, right, label)
    return torch.relu(margin - label.detach() * (left - right))


@op("kldiv_loss", "X Target", "Loss", lod="none")
def kldiv_loss(x: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """x: logarithms. reduction: "mean", "sum", "batchmean" or "none"."""
    check_same_shape(x, target)
    target = target.detach()
    loss = torch.where(target > 0, target * (target.clamp(min=1e-38).log() - x), 0.0)
    if reduction == "none":
        return loss
    total = loss.sum().reshape(1)
    divisor = {"mean": loss.numel(), "batchmean": len(x), "sum": 1}[reduction]
    return total / max(divisor, 1)


@op("smooth_l1_loss", "X Y InsideWeight? OutsideWeight?", lod="none")
def smooth_l1_loss(
    x: Tensor, y: Tensor, inside: Tensor | None, outside: Tensor | None, *, sigma: float = 1.0
) -> Tensor:
    """Half the square near 0, a line further out, added up for each example: [N, 1]."""
    check_same_shape(x, y)
    gap = x - y if inside is None else (x - y) * inside
    square = sigma * sigma
    size = gap.abs()
    loss = torch.where(size < 1 / square, 0.5 * square * gap * gap, size - 0.5 / square)
    loss = loss if outside is None else loss * outside
    return loss.reshape(len(x), -1).sum(1, keepdim=True)


class _TeacherStudent(torch.autograd.Function):
    """The gradient is that of logits cut to the bounds."""

    @staticmethod
    def forward(ctx, x: Tensor, label: Tensor, up: float, low: float) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, label)
        ctx.bounds = (low, up)
        clicked, teacher = _teacher_parts(label)
        soft = functional.softplus(x)
        return soft - x * clicked + torch.where(label >= 0, soft - x * teacher, 0.0)

    @staticmethod
    def backward(ctx, *gradients: Tensor):  # type: ignore[no-untyped-def]
        x, label = ctx.saved_tensors
        low, up = ctx.bounds
        cut = x.clamp(low, up)
        chance = torch.sigmoid(cut)
        clicked, teacher = _teacher_parts(label)
        slope = chance - clicked + torch.where(label >= 0, chance - teacher, 0.0)
        slope = torch.where((x > low) & (x < up), slope, 0.0)
        return gradients[0] * slope, None, None, None


def _teacher_parts(label: Tensor) -> tuple[Tensor, Tensor]:
    """Whether there was a click, and the teacher's score: -2, -1, q, or 1 + q are the labels."""
    clicked = ((label >= 1) | ((label < 0) & (label >= -1))).to(label.dtype)
    return clicked, label - (label >= 1).to(label.dtype)


@op("teacher_student_sigmoid_loss", "X Label", "Y")
def teacher_student_sigmoid_loss(
    x: Tensor,
    label: Tensor,
    *,
    soft_max_up_bound: float = 15.0,
    soft_max_lower_bound: float = -15.0,
) -> Tensor:
    made: Tensor = _TeacherStudent.apply(x, label.detach(), soft_max_up_bound, soft_max_lower_bound)  # type: ignore[no-untyped-call]
    return made


@op("sigmoid_focal_loss", "X Label FgNum")
def sigmoid_focal_loss(
    x: Tensor, label: Tensor, count: Tensor, *, gamma: float = 2.0, alpha: float = 0.25
) -> Tensor:
    """Lin et al. (2017): x [N, C]; labels 1..C, 0 is background, -1 is left out."""
    classes = torch.arange(1, x.shape[1] + 1, device=x.device)
    label = label.reshape(-1, 1)
    is_class = label == classes
    is_other = (label != -1) & ~is_class
    chance = torch.sigmoid(x)
    gain = alpha * (1 - chance) ** gamma * -functional.logsigmoid(x)
    loss = (1 - alpha) * chance**gamma * functional.softplus(x)
    total = torch.where(is_class, gain, torch.where(is_other, loss, 0.0))
    return total / count.to(x.dtype).clamp(min=1)


@op("center_loss", "X Label Centers", "Loss")
def center_loss(x: Tensor, label: Tensor, centers: Tensor) -> Tensor:
    """Half the square of the distance to the centre of the label's class: [N, 1]."""
    gaps = x - centers.detach()[label.reshape(-1).long()]
    return 0.5 * gaps.square().sum(1, keepdim=True)


@op("move_centers", "X Label Rate Centers", "CentersOut", lod="none", has_effect=True)
def move_centers(x: Tensor, label: Tensor, rate: Tensor, centers: Tensor) -> Tensor:
    """Wen et al. (2016): each centre goes towards the mean of its examples."""
    rows = label.reshape(-1).long()
    gaps = x.detach() - centers[rows]
    sums = torch.zeros_like(centers).index_add(0, rows, gaps)
    counts = centers.new_ones(len(centers)).index_add(0, rows, centers.new_ones(len(rows)))
    return centers + rate.reshape(()) * sums / counts[:, None]
