"""How wrong a prediction is."""

from __future__ import annotations

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer

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

_IGNORED = -100


@layer
def cross_entropy(
    input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = _IGNORED
) -> Variable:
    """-log of the probability of the right class: input [..., C], label int64[..., 1]."""
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
    """The cross entropy of softmax(logits); with return_softmax that too."""
    del numeric_stable_mode
    helper = LayerHelper("softmax_with_cross_entropy")
    softmax, loss = helper.new_variable(logits.dtype), helper.new_variable(logits.dtype)
    attrs = {"soft_label": soft_label, "ignore_index": ignore_index, "axis": axis}
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
    """Of each element; normalize: divided by the number of those not ignored."""
    helper = LayerHelper("sigmoid_cross_entropy_with_logits", name)
    attrs = {"ignore_index": ignore_index, "normalize": normalize}
    inputs = {"X": helper.check_input(x, "x"), "Label": helper.check_input(label, "label")}
    return helper.add("sigmoid_cross_entropy_with_logits", inputs, attrs)


@layer
def log_loss(
    input: Variable, label: Variable, epsilon: float = 1e-4, name: str | None = None
) -> Variable:
    """Of probabilities [N, 1] and labels float32[N, 1]."""
    helper = LayerHelper("log_loss", name)
    inputs = {"Predicted": helper.check_input(input), "Labels": helper.check_input(label, "label")}
    return helper.add("log_loss", inputs, {"epsilon": epsilon}, slot="Loss")


@layer
def square_error_cost(input: Variable, label: Variable) -> Variable:
    """The square of the difference."""
    helper = LayerHelper("square_error_cost")
    inputs = {"X": helper.check_input(input), "Y": helper.check_input(label, "label")}
    difference = helper.add("elementwise_sub", inputs)
    return helper.add("square", {"X": difference})


@layer
def mse_loss(input: Variable, label: Variable) -> Variable:
    """The mean of the squares of the differences."""
    helper = LayerHelper("reduce_mean")
    return helper.add("reduce_mean", {"X": square_error_cost(input, label)})


@layer
def huber_loss(input: Variable, label: Variable, delta: float) -> Variable:
    """Half the square of the difference up to delta, from there on a line."""
    helper = LayerHelper("huber_loss")
    helper.skip_names(1)  # the differences
    return helper.add("huber_loss", {"X": input, "Y": label}, {"delta": delta})


@layer
def bpr_loss(input: Variable, label: Variable, name: str | None = None) -> Variable:
    """Bayesian personalised ranking of the right class against all others: [N, 1]."""
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
    """A share epsilon of the label spread over all classes."""
    del dtype
    helper = LayerHelper("label_smooth", name)
    helper.check_input(label, "label").stop_gradient = True
    return helper.add("label_smooth", {"X": label, "PriorDist": prior_dist}, {"epsilon": epsilon})
