"""Losses for scores, rankings and distributions."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.param_attr import to_param_attr
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.operators.elementwise import scale
from sparsefleet.fluid.operators.filling import fill_constant
from sparsefleet.fluid.operators.indexing import one_hot
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer
from sparsefleet.fluid.operators.losses import check_same_shape, softmax_with_cross_entropy
from sparsefleet.fluid.operators.matrices import matmul
from sparsefleet.fluid.operators.reductions import reduce_mean, reduce_sum
from sparsefleet.fluid.operators.shaping import cast, expand, reshape, transpose

__all__ = [
    "center_loss",
    "dice_loss",
    "kldiv_loss",
    "margin_rank_loss",
    "npair_loss",
    "rank_loss",
    "sigmoid_focal_loss",
    "smooth_l1",
    "teacher_student_sigmoid_loss",
]

Tensor = torch.Tensor


@op("rank_loss", "Label Left Right")
def rank_loss_op(label: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return the RankNet loss (Burges et al. 2005); label 1 means that left ranks above right."""
    check_same_shape(left, right, label)
    ahead = left - right
    return functional.softplus(ahead) - label.detach() * ahead


@op("margin_rank_loss", "Label X1 X2")
def margin_rank_loss_op(
    label: Tensor, left: Tensor, right: Tensor, *, margin: float = 0.1
) -> Tensor:
    check_same_shape(left, right, label)
    return torch.relu(margin - label.detach() * (left - right))


@op("kldiv_loss", "X Target", "Loss", lod="none")
def kldiv_loss_op(x: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return the KL divergence. x: log-probabilities. reduction: "mean", "sum", "batchmean" or
    "none".
    """
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
    """Return the smooth L1 loss, quadratic for small and linear for large differences: [N, 1]."""
    check_same_shape(x, y)
    gap = x - y if inside is None else (x - y) * inside
    square = sigma * sigma
    size = gap.abs()
    loss = torch.where(size < 1 / square, 0.5 * square * gap * gap, size - 0.5 / square)
    loss = loss if outside is None else loss * outside
    return loss.reshape(len(x), -1).sum(1, keepdim=True)


class _TeacherStudent(torch.autograd.Function):
    """Computes the teacher-student loss; its gradient is computed from clipped logits."""

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
    """Decode labels -2, -1, q and 1 + q into whether there was a click and the teacher's score."""
    clicked = ((label >= 1) | ((label < 0) & (label >= -1))).to(label.dtype)
    return clicked, label - (label >= 1).to(label.dtype)


@op("teacher_student_sigmoid_loss", "X Label", "Y")
def teacher_student_sigmoid_loss_op(
    x: Tensor,
    label: Tensor,
    *,
    soft_max_up_bound: float = 15.0,
    soft_max_lower_bound: float = -15.0,
) -> Tensor:
    made: Tensor = _TeacherStudent.apply(x, label.detach(), soft_max_up_bound, soft_max_lower_bound)  # type: ignore[no-untyped-call]
    return made


@op("sigmoid_focal_loss", "X Label FgNum")
def sigmoid_focal_loss_op(
    x: Tensor, label: Tensor, count: Tensor, *, gamma: float = 2.0, alpha: float = 0.25
) -> Tensor:
    """Return the focal loss (Lin et al. 2017): x [N, C]; labels 1..C, 0 background, -1 ignored."""
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
def center_loss_op(x: Tensor, label: Tensor, centers: Tensor) -> Tensor:
    """Return half the squared distance to the center of the labeled class: [N, 1]."""
    gaps = x - centers.detach()[label.reshape(-1).long()]
    return 0.5 * gaps.square().sum(1, keepdim=True)


@op("move_centers", "X Label Rate Centers", "CentersOut", lod="none", has_effect=True)
def move_centers(x: Tensor, label: Tensor, rate: Tensor, centers: Tensor) -> Tensor:
    """Move each center towards the mean of its examples (Wen et al. 2016)."""
    rows = label.reshape(-1).long()
    gaps = x.detach() - centers[rows]
    sums = torch.zeros_like(centers).index_add(0, rows, gaps)
    counts = centers.new_ones(len(centers)).index_add(0, rows, centers.new_ones(len(rows)))
    return centers + rate.reshape(()) * sums / counts[:, None]


@layer
def rank_loss(
    label: Variable, left: Variable, right: Variable, name: str | None = None
) -> Variable:
    """Return the RankNet loss; label 1 means that left ranks above right."""
    helper = LayerHelper("rank_loss", name)
    inputs = {
        "Label": helper.check_input(label, "label"),
        "Left": helper.check_input(left, "left"),
        "Right": helper.check_input(right, "right"),
    }
    return helper.add("rank_loss", inputs)


@layer
def margin_rank_loss(
    label: Variable, left: Variable, right: Variable, margin: float = 0.1, name: str | None = None
) -> Variable:
    """Return max(0, margin - label * (left - right)) for labels 1 and -1."""
    helper = LayerHelper("margin_rank_loss", name)
    inputs = {
        "Label": helper.check_input(label, "label"),
        "X1": helper.check_input(left, "left"),
        "X2": helper.check_input(right, "right"),
    }
    return helper.add("margin_rank_loss", inputs, {"margin": margin})


@layer
def kldiv_loss(
    x: Variable, target: Variable, reduction: str = "mean", name: str | None = None
) -> Variable:
    """Return target * (log(target) - x), reduced by "mean", "sum", "batchmean" or "none"."""
    helper = LayerHelper("kldiv_loss", name)
    kinds = ("mean", "sum", "batchmean", "none")
    if reduction not in kinds:
        raise helper.refuse(f"reduction must be one of {', '.join(kinds)}, got {reduction!r}")
    inputs = {"X": helper.check_input(x, "x"), "Target": helper.check_input(target, "target")}
    return helper.add("kldiv_loss", inputs, {"reduction": reduction}, slot="Loss")


@layer
def smooth_l1(
    x: Variable,
    y: Variable,
    inside_weight: Variable | None = None,
    outside_weight: Variable | None = None,
    sigma: float | None = None,
) -> Variable:
    """Return each row's smooth L1 loss, quadratic for small and linear for large differences: [N,
    1].
    """
    helper = LayerHelper("smooth_l1_loss")
    helper.skip_names(1)  # the differences
    inputs = {
        "X": helper.check_input(x, "x"),
        "Y": helper.check_input(y, "y"),
        "InsideWeight": inside_weight,
        "OutsideWeight": outside_weight,
    }
    return helper.add("smooth_l1_loss", inputs, {"sigma": 1.0 if sigma is None else sigma})


@layer
def teacher_student_sigmoid_loss(
    input: Variable,
    label: Variable,
    soft_max_up_bound: float = 15.0,
    soft_max_lower_bound: float = -15.0,
) -> Variable:
    """Return the loss of logits [N, 1] against a click and a teacher's score q.

    label: -2 for no click and no score, -1 for a click and no score, q for no click, 1 + q for a
        click.
    """
    helper = LayerHelper("teacher_student_sigmoid_loss")
    attrs = {
        "soft_max_up_bound": float(soft_max_up_bound),
        "soft_max_lower_bound": float(soft_max_lower_bound),
    }
    inputs = {"X": helper.check_input(input), "Label": helper.check_input(label, "label")}
    out = helper.create_variable()
    return helper.add("teacher_student_sigmoid_loss", inputs, attrs, slot="Y", out=out)


@layer
def sigmoid_focal_loss(
    x: Variable, label: Variable, fg_num: Variable, gamma: float = 2.0, alpha: float = 0.25
) -> Variable:
    """Return the focal loss of each class, divided by the number of objects: [N, C]."""
    helper = LayerHelper("sigmoid_focal_loss")
    inputs = {
        "X": helper.check_input(x, "x"),
        "Label": helper.check_input(label, "label"),
        "FgNum": helper.check_input(fg_num, "fg_num"),
    }
    return helper.add("sigmoid_focal_loss", inputs, {"gamma": gamma, "alpha": alpha})


@layer
def center_loss(
    input: Variable,
    label: Variable,
    num_classes: int,
    alpha: float | Variable,
    param_attr: Any,
    update_center: bool = True,
) -> Variable:
    """Return half the squared distance to the center of the labeled class: [N, 1].

    Also updates the centers.

    param_attr: attr of the centers [num_classes, D].
    """
    helper = LayerHelper("center_loss")
    known = to_param_attr(param_attr)
    if known is None:
        raise helper.refuse("param_attr cannot be False")
    shape = [num_classes, helper.check_input(input).shape[1]]
    centers = helper.create_parameter(known, shape, input.dtype)
    centers.stop_gradient = True
    rate = alpha if isinstance(alpha, Variable) else fill_constant([1], "float32", alpha)
    inputs = {"X": input, "Label": helper.check_input(label, "label"), "Centers": centers}
    helper.skip_names(1)  # the distances
    loss = helper.add("center_loss", inputs, slot="Loss")
    if update_center:
        helper.append_op("move_centers", {**inputs, "Rate": rate}, {"CentersOut": centers})
    return loss


@layer
def dice_loss(
    input: Variable, label: Variable, epsilon: float = 1e-5, name: str | None = None
) -> Variable:
    """Return the Dice loss, 1 - 2 * overlap / (total size of both): input [N, ..., C], label
    int64[N, ..., 1].
    """
    del name
    rows = one_hot(label, input.shape[-1])
    axes = list(range(1, len(input.shape)))
    overlap = reduce_sum(input * rows, dim=axes)
    size = reduce_sum(input, dim=axes) + reduce_sum(rows, dim=axes)
    return reduce_mean(1 - overlap * 2 / (size + epsilon))


@layer
def npair_loss(
    anchor: Variable, positive: Variable, labels: Variable, l2_reg: float = 0.002
) -> Variable:
    """Return the N-pair loss (Sohn 2016) of anchors [N, D] and positives [N, D] with labels [N]."""
    count = labels.shape[0]
    column = expand(reshape(labels, [count, 1]), [1, count])
    same = cast(column == transpose(column, [1, 0]), "float32")
    same = same / reduce_sum(same, dim=1, keep_dim=True)
    squares = reduce_mean(reduce_sum(anchor * anchor, 1)) + reduce_mean(
        reduce_sum(positive * positive, 1)
    )
    scores = matmul(anchor, positive, transpose_y=True)
    loss = softmax_with_cross_entropy(scores, same, soft_label=True)
    assert isinstance(loss, Variable)
    entropy = reduce_mean(reduce_sum(same * loss, 0))
    return scale(squares, 0.25 * l2_reg) + entropy
