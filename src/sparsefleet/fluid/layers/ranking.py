"""How wrong scores, orders and distributions are."""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.layers.elementwise import scale
from sparsefleet.fluid.layers.filling import fill_constant
from sparsefleet.fluid.layers.indexing import one_hot
from sparsefleet.fluid.layers.losses import softmax_with_cross_entropy
from sparsefleet.fluid.layers.products import matmul
from sparsefleet.fluid.layers.reductions import reduce_mean, reduce_sum
from sparsefleet.fluid.layers.shaping import cast, expand, reshape, transpose
from sparsefleet.fluid.param_attr import to_param_attr

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


@layer
def rank_loss(
    label: Variable, left: Variable, right: Variable, name: str | None = None
) -> Variable:
    """RankNet: label 1 says that left comes before right."""
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
    """max(0, margin - label * (left - right)); label 1 or -1."""
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
    """target * (log(target) - x), its "mean", "sum", "batchmean" or "none" of these."""
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
    """Half the square of small differences, a line for large ones; the sum a row: [N, 1]."""
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
    """Loss of logits [N, 1] against a click and a teacher's score q.

    label: -2 no click and no teacher, -1 click and no teacher, q no click, 1 + q click.
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
    """The focal loss of each class, divided by the number of objects: [N, C]."""
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
    """Half the squared distance to the centre of the label's class, which moves: [N, 1].

    param_attr: of the centres [num_classes, D].
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
    """1 - 2 * overlap / size of both: input [N, ..., C], label int64[N, ..., 1]."""
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
    """Sohn (2016): each anchor [N, D] against the positives of all others, labels [N]."""
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
