"""Losses over many classes that look at a few of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.initializer import NumpyArrayInitializer
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.param_attr import ParamAttr, to_param_attr

__all__ = ["hsigmoid", "nce", "sampled_softmax_with_cross_entropy"]

_SAMPLERS = ("uniform", "log_uniform", "custom_dist")


def _weights(
    helper: LayerHelper, shape: list[int], param_attr: Any, bias_attr: Any, dtype: str
) -> dict[str, Any]:
    known, shift = to_param_attr(param_attr), to_param_attr(bias_attr)
    if known is None:
        raise helper.refuse("param_attr cannot be False")
    found: dict[str, Any] = {"W": helper.create_parameter(known, shape, dtype)}
    if shift is not None:
        found["Bias"] = helper.create_parameter(shift, [shape[0], 1], dtype, is_bias=True)
    return found


@layer
def nce(
    input: Variable,
    label: Variable,
    num_total_classes: int,
    sample_weight: Variable | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    num_neg_samples: int | None = None,
    name: str | None = None,
    sampler: str = "uniform",
    custom_dist: Sequence[float] | None = None,
    seed: int = 0,
    is_sparse: bool = False,
) -> Variable:
    """Noise-contrastive estimation: input [N, D], label int64[N, T] -> [N, 1].

    num_neg_samples: other classes that each example is compared with, 10 by default.
    sampler: "uniform", "log_uniform", or "custom_dist" with the chances of all classes.
    """
    del is_sparse
    helper = LayerHelper("nce", name)
    if sampler not in _SAMPLERS or (sampler == "custom_dist") != (custom_dist is not None):
        raise helper.refuse(
            f"sampler must be one of {', '.join(_SAMPLERS)}, custom_dist given with the last; got "
            f"{sampler!r}"
        )
    shape = [num_total_classes, helper.check_input(input).shape[1]]
    inputs = _weights(helper, shape, param_attr, bias_attr, input.dtype)
    inputs["Weight"] = inputs.pop("W")
    inputs |= {"Input": input, "Label": helper.check_input(label, "label")}
    inputs["SampleWeight"] = sample_weight
    if custom_dist is not None:
        inputs["CustomDist"] = _distribution(helper, custom_dist, num_total_classes)
    count = 10 if num_neg_samples is None else int(num_neg_samples)
    cost, logits = helper.new_variable(input.dtype), helper.new_variable(input.dtype)
    labels = helper.new_variable("int64", stop_gradient=True)
    attrs = {
        "num_total_classes": int(num_total_classes),
        "num_neg_samples": count,
        "sampler": sampler,
        "seed": seed,
    }
    outputs = {"Cost": cost, "SampleLogits": logits, "SampleLabels": labels}
    helper.append_op("nce", inputs, outputs, attrs)
    return cost / (count + 1)


def _distribution(helper: LayerHelper, custom_dist: Sequence[float], classes: int) -> Variable:
    chances = np.asarray(custom_dist, dtype=np.float32)
    if chances.shape != (classes,):
        raise helper.refuse(f"custom_dist has shape {chances.shape}, wanted ({classes},)")
    made = helper.create_parameter(
        ParamAttr(), [classes], "float32", default_initializer=NumpyArrayInitializer(chances)
    )
    made.stop_gradient = True
    return made


@layer
def hsigmoid(
    input: Variable,
    label: Variable,
    num_classes: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
    path_table: Variable | None = None,
    path_code: Variable | None = None,
    is_custom: bool = False,
    is_sparse: bool = False,
) -> Variable:
    """Hierarchical sigmoid: input [N, D], label int64[N, 1] -> [N, 1].

    path_table, path_code: with is_custom, the inner nodes from a label's leaf to the root, and 0
        or 1 at each, int64[N, L] with -1 behind the end; num_classes is then that of such nodes.
    """
    del is_sparse
    helper = LayerHelper("hierarchical_sigmoid", name)
    given = path_table is not None and path_code is not None
    if given != is_custom or (path_table is None) != (path_code is None):
        raise helper.refuse("path_table and path_code must be given with is_custom, and only so")
    if num_classes is None or (num_classes < 2 and not is_custom):
        raise helper.refuse(f"num_classes must be at least 2, got {num_classes}")
    out = helper.new_variable(helper.check_input(input).dtype)
    shape = [num_classes if is_custom else num_classes - 1, input.shape[1]]
    inputs = _weights(helper, shape, param_attr, bias_attr, input.dtype)
    inputs |= {"X": input, "Label": helper.check_input(label, "label")}
    inputs |= {"PathTable": path_table, "PathCode": path_code}
    helper.append_op("hierarchical_sigmoid", inputs, {"Out": out}, {"num_classes": num_classes})
    return out


@layer
def sampled_softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    num_samples: int,
    num_true: int = 1,
    remove_accidental_hits: bool = True,
    use_customized_samples: bool = False,
    customized_samples: Variable | None = None,
    customized_probabilities: Variable | None = None,
    seed: int = 0,
) -> Variable:
    """The cross entropy of softmax over the label and some other classes: [N, 1].

    customized_samples: int64[N, num_true + num_samples], the labels first.
    """
    helper = LayerHelper("sample_logits")
    inputs = {
        "Logits": helper.check_input(logits, "logits"),
        "Labels": helper.check_input(label, "label"),
    }
    if use_customized_samples:
        inputs["CustomizedSamples"] = helper.check_input(customized_samples, "customized_samples")
        inputs["CustomizedProbabilities"] = helper.check_input(
            customized_probabilities, "customized_probabilities"
        )
    attrs = {
        "num_samples": num_samples,
        "remove_accidental_hits": remove_accidental_hits,
        "seed": seed,
    }
    sampled = helper.add("sample_logits", inputs, attrs, slot="SampledLogits")
    right = helper.add("first_classes", {"X": sampled, "Labels": label})
    right.stop_gradient = True
    softmax, loss = helper.new_variable(logits.dtype), helper.new_variable(logits.dtype)
    helper.append_op(
        "softmax_with_cross_entropy",
        {"Logits": sampled, "Label": right},
        {"Softmax": softmax, "Loss": loss},
        {"soft_label": True},
    )
    return loss / num_true
