"""Loss functions."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.lowering.registry import Shape, float_rule, op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, op_settings

__all__ = [
    "bpr_loss",
    "cross_entropy",
    "huber_loss",
    "label_smooth",
    "log_loss",
    "mse_loss",
    "sigmoid_cross_entropy_with_logits",
    "softmax_with_cross_entropy",
    "square_error_cost",
]


# Logits are clipped as in Fluid's softmax, to at most 64 below the largest in their row.
#
# Therefore no probability is 0, and no loss exceeds 64.


Tensor = torch.Tensor

_DEPTH = 64.0


class _Raised(torch.autograd.Function):
    """Takes the larger of the logits and a bound.

    The logits get the whole gradient, even where the bound is larger.
    """

    @staticmethod
    def forward(context: Any, logits: Tensor, floor: Tensor) -> Tensor:
        del context
        return torch.maximum(logits, floor)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        del context
        return gradients[0], None


def cut_logits(logits: Tensor, axis: int) -> Tensor:
    """Clamp logits to at most _DEPTH below the largest along the axis; gradients are unaffected."""
    if logits.is_meta or not logits.numel():
        return logits
    lowest, highest = torch.aminmax(logits.detach())  # a quick check for the common case
    if float(highest - lowest) <= _DEPTH:
        return logits
    floor = logits.detach().amax(axis, keepdim=True) - _DEPTH
    raised: Tensor = _Raised.apply(logits, floor)  # type: ignore[no-untyped-call]
    return raised


def check_same_shape(x: Tensor, *others: Tensor) -> None:
    """Raise ValueError unless all shapes are equal, since broadcasting would hide a short batch.

    While a program is being built, placeholders for unknown sizes are not compared.
    """
    for other in others:
        if x.shape != other.shape and not x.is_meta:
            raise ValueError(
                f"inputs must have the same shape, got {[*x.shape]} and {[*other.shape]}"
            )


def _column(x: Tensor, label: Tensor, axis: int) -> Tensor:
    """Return labels int64[..., 1] that select one element from each row of x."""
    if label.is_floating_point() and not label.is_meta:  # a fed array may have a different type
        raise TypeError(
            f"hard labels must be int64, got {label.dtype}; cast them, or set soft_label=True"
        )
    index = label.long()
    index = index if index.dim() == x.dim() else index.unsqueeze(axis)
    wanted = list(x.shape)
    wanted[axis] = 1
    if list(index.shape) != wanted and not x.is_meta:
        raise ValueError(
            f"for inputs of shape {[*x.shape]}, labels must be {wanted}, got {[*label.shape]}"
        )
    return index


def _is_class_of(x: Shape, label: Shape, attrs: Any) -> bool:
    return not attrs.get("soft_label") and bool(x) and label == (*x[:-1], 1)


def _cross_entropy_shape(x: Shape, label: Shape, /, **attrs: Any) -> list[Shape] | None:
    return [label] if _is_class_of(x, label, attrs) else None


@op("cross_entropy", "X Label", "Y", shape=float_rule(_cross_entropy_shape, takes_indices=True))
def cross_entropy_op(
    x: Tensor, label: Tensor, *, soft_label: bool = False, ignore_index: int = -100
) -> Tensor:
    """Return the cross entropy. x: probabilities [..., C]; label: int64[..., 1], or soft labels."""
    if soft_label:
        check_same_shape(x, label)
        return -(label.detach() * _log(x)).sum(-1, keepdim=True)
    index = _column(x, label, -1)
    ignored = index == ignore_index
    loss = -_log(x.gather(-1, index.masked_fill(ignored, 0)))
    return loss.masked_fill(ignored, 0.0)


def _log(x: Tensor) -> Tensor:
    """Return log(x), or -1e20 at 0 as in Fluid; NaN for negative values."""
    is_zero = x == 0
    return x.masked_fill(is_zero, 1.0).log().masked_fill(is_zero, -1e20)


def _softmax_cross_entropy_shapes(x: Shape, label: Shape, /, **attrs: Any) -> list[Shape] | None:
    is_last = attrs.get("axis", -1) in (-1, len(x) - 1)
    return [x, label] if is_last and _is_class_of(x, label, attrs) else None


@op(
    "softmax_with_cross_entropy",
    "Logits Label",
    "Softmax Loss",
    shape=float_rule(_softmax_cross_entropy_shapes, takes_indices=True),
)
def softmax_with_cross_entropy_op(
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
        loss = loss + _as_if_summing_to_one(logits, logarithms, label.detach(), axis)
    else:
        index = _column(logits, label, axis)
        ignored = index == ignore_index
        loss = -logarithms.gather(axis, index.masked_fill(ignored, 0))
        loss = loss.masked_fill(ignored, 0.0)
    return [torch.softmax(logits, axis), loss]


def _as_if_summing_to_one(logits: Tensor, logarithms: Tensor, label: Tensor, axis: int) -> Tensor:
    """Return 0, with a gradient that makes the total gradient softmax - label, as in Fluid.

    This differs from the true gradient if labels do not sum to 1.
    """
    total = (logits - logarithms).narrow(axis, 0, 1)  # log of the sum of exponentials
    return (1 - label.sum(axis, keepdim=True)) * (total - total.detach())


def _same_as_both(x: Shape, y: Shape, /, **attrs: Any) -> list[Shape] | None:
    del attrs
    return [x] if x == y else None


@op("sigmoid_cross_entropy_with_logits", "X Label", shape=float_rule(_same_as_both))
def sigmoid_cross_entropy_with_logits_op(
    x: Tensor, label: Tensor, *, ignore_index: int = -100, normalize: bool = False
) -> Tensor:
    ignored = label == ignore_index
    loss = functional.binary_cross_entropy_with_logits(
        x, label.detach().to(x.dtype), reduction="none"
    )
    loss = loss.masked_fill(ignored, 0.0)
    return loss / (~ignored).sum().clamp(min=1) if normalize else loss


@op("log_loss", "Predicted Labels", "Loss", shape=float_rule(_same_as_both))
def log_loss_op(x: Tensor, label: Tensor, *, epsilon: float = 1e-4) -> Tensor:
    check_same_shape(x, label)
    label = label.detach()
    return -label * torch.log(x + epsilon) - (1 - label) * torch.log(1 - x + epsilon)


@op("huber_loss", "X Y")
def huber_loss_op(x: Tensor, y: Tensor, *, delta: float) -> Tensor:
    check_same_shape(x, y)
    return functional.huber_loss(x, y, reduction="none", delta=delta)


@op("bpr_loss", "X Label", "Y")
def bpr_loss_op(x: Tensor, label: Tensor) -> Tensor:
    """Return the mean over the other classes of -log sigmoid(x_label - x_other), the Bayesian
    personalized ranking loss.
    """
    index = _column(x, label, -1)
    others = functional.logsigmoid(x.gather(1, index) - x)
    total = others.sum(1, keepdim=True) - others.gather(1, index)
    return -total / (x.shape[1] - 1)


@op("label_smooth", "X PriorDist?")
def label_smooth_op(x: Tensor, prior: Tensor | None, *, epsilon: float = 0.1) -> Tensor:
    spread = prior if prior is not None else 1.0 / x.shape[-1]
    return (1 - epsilon) * x + epsilon * spread


_IGNORED = -100


@layer
def cross_entropy(
    input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = _IGNORED
) -> Variable:
    """Return -log of the probability of the correct class: input [..., C], label int64[..., 1]."""
    helper = LayerHelper("cross_entropy" if soft_label else "cross_entropy2")
    attrs = {"soft_label": soft_label, "ignore_index": ignore_index}
    inputs = {"X": helper.check_input(input), "Label": helper.check_input(label, "label")}
    return helper.add("cross_entropy", inputs, attrs, slot="Y")


@layer
def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = _IGNORED,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Variable | tuple[Variable, Variable]:
    """Return the cross entropy of softmax(logits) and, with return_softmax, the softmax."""
    del numeric_stable_mode
    helper = LayerHelper("softmax_with_cross_entropy")
    softmax, loss = helper.new_variable(logits.dtype), helper.new_variable(logits.dtype)
    attrs = op_settings("softmax_with_cross_entropy", locals())
    inputs = {"Logits": helper.check_input(logits), "Label": helper.check_input(label, "label")}
    helper.append_op(
        "softmax_with_cross_entropy", inputs, {"Softmax": softmax, "Loss": loss}, attrs
    )
    return (loss, softmax) if return_softmax else loss


@layer
def sigmoid_cross_entropy_with_logits(
    x: Variable,
    label: Variable,
    ignore_index: int = _IGNORED,
    name: str | None = None,
    normalize: bool = False,
) -> Variable:
    """Return each element's sigmoid cross entropy; `normalize` divides by the number of elements
    that are not ignored.
    """
    helper = LayerHelper("sigmoid_cross_entropy_with_logits", name)
    attrs = {"ignore_index": ignore_index, "normalize": normalize}
    inputs = {"X": helper.check_input(x, "x"), "Label": helper.check_input(label, "label")}
    return helper.add("sigmoid_cross_entropy_with_logits", inputs, attrs)


@layer
def log_loss(
    input: Variable, label: Variable, epsilon: float = 1e-4, name: str | None = None
) -> Variable:
    """Return the log loss of probabilities [N, 1] against labels float32[N, 1]."""
    helper = LayerHelper("log_loss", name)
    inputs = {"Predicted": helper.check_input(input), "Labels": helper.check_input(label, "label")}
    return helper.add("log_loss", inputs, {"epsilon": epsilon}, slot="Loss")


@layer
def square_error_cost(input: Variable, label: Variable) -> Variable:
    """Return the squared difference of each element."""
    helper = LayerHelper("square_error_cost")
    inputs = {"X": helper.check_input(input), "Y": helper.check_input(label, "label")}
    difference = helper.add("elementwise_sub", inputs)
    return helper.add("square", {"X": difference})


@layer
def mse_loss(input: Variable, label: Variable) -> Variable:
    """Return the mean squared difference."""
    helper = LayerHelper("reduce_mean")
    return helper.add("reduce_mean", {"X": square_error_cost(input, label)})


@layer
def huber_loss(input: Variable, label: Variable, delta: float) -> Variable:
    """Return the Huber loss: half the squared difference up to delta, and linear above delta."""
    helper = LayerHelper("huber_loss")
    helper.skip_names(1)  # the differences
    return helper.add("huber_loss", {"X": input, "Y": label}, {"delta": delta})


@layer
def bpr_loss(input: Variable, label: Variable, name: str | None = None) -> Variable:
    """Return the Bayesian personalized ranking loss of the correct class against all others: [N,
    1]."""
    helper = LayerHelper("bpr_loss", name)
    return helper.add("bpr_loss", {"X": helper.check_input(input), "Label": label}, slot="Y")


@layer
def label_smooth(
    label: Variable,
    prior_dist: Variable | None = None,
    epsilon: float = 0.1,
    dtype: str = "float32",
    name: str | None = None,
) -> Variable:
    """Spread a fraction epsilon of the label over all classes."""
    del dtype
    helper = LayerHelper("label_smooth", name)
    helper.check_input(label, "label").stop_gradient = True
    return helper.add("label_smooth", {"X": label, "PriorDist": prior_dist}, {"epsilon": epsilon})


@op("bce_loss", "X Label", lod="none")
def bce_loss_op(x: Tensor, label: Tensor) -> Tensor:
    """Return -(label log x + (1 - label) log(1 - x)), with logs no smaller than -100."""
    return torch.nn.functional.binary_cross_entropy(x, label, reduction="none")


@op("nll_loss", "X Label Weight?", lod="none")
def nll_loss_op(
    x: Tensor,
    label: Tensor,
    weight: Tensor | None,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Tensor:
    """Return the negative log-probability x [N, C, ...] of the label, weighted by class."""
    if x.is_meta:
        return x.new_empty(label.shape if reduction == "none" else [1])
    made = torch.nn.functional.nll_loss(
        x, label, weight, ignore_index=ignore_index, reduction=reduction
    )
    return made if reduction == "none" else made.reshape(1)
