"""Losses over many classes, computed from a few sampled classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.initializer import NumpyArrayInitializer
from sparsefleet.fluid.framework.param_attr import ParamAttr, to_param_attr
from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer

__all__ = ["hsigmoid", "nce", "sampled_softmax_with_cross_entropy"]

Tensor = torch.Tensor


def _draw(
    sampler: str,
    classes: int,
    shape: tuple[int, ...],
    dist: Tensor | None,
    generator: torch.Generator | None,
) -> Tensor:
    """Sample int64 class ids of this shape with the sampler "uniform", "log_uniform" or `dist`."""
    if sampler == "uniform":
        return torch.randint(classes, shape, generator=generator)
    if sampler == "log_uniform":
        numbers = torch.exp(torch.rand(shape, generator=generator) * math.log(classes + 1)) - 1
        return numbers.long().clamp(0, classes - 1)
    assert dist is not None
    flat = torch.multinomial(dist, math.prod(shape), replacement=True, generator=generator)
    return flat.reshape(shape)


def _chance(sampler: str, classes: int, drawn: Tensor, dist: Tensor | None) -> Tensor:
    """Return the probability of each class being sampled."""
    if sampler == "uniform":
        return torch.full(drawn.shape, 1.0 / classes)
    if sampler == "log_uniform":
        number = drawn.float()
        return torch.log((number + 2) / (number + 1)) / math.log(classes + 1)
    assert dist is not None
    return dist[drawn]


def _nce_shapes(x: Shape, label: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del others
    seen = label[1] + settings["num_neg_samples"]
    return [(x[0], 1), (x[0], seen), (x[0], seen)]


@op(
    "nce",
    "Input Label Weight Bias? SampleWeight? CustomDist?",
    "Cost SampleLogits SampleLabels",
    lod="none",
    infer=_nce_shapes,
)
def nce_op(
    x: Tensor,
    label: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sample_weight: Tensor | None,
    dist: Tensor | None,
    *,
    num_total_classes: int,
    num_neg_samples: int,
    sampler: str = "uniform",
    generator: torch.Generator | None = None,
) -> list[Tensor]:
    """Return the noise-contrastive loss, with separate negatives for each example."""
    true = label.shape[1]
    shape = (len(x), num_neg_samples)
    # As in 1.8.5, the logarithmic sampler never draws the last class.
    classes = num_total_classes - (sampler == "log_uniform")
    negatives = _draw(sampler, classes, shape, dist, generator)
    labels = torch.cat([label.long(), negatives], 1)
    logits = (weight[labels] * x[:, None]).sum(-1)
    if bias is not None:
        logits = logits + bias.reshape(-1)[labels]
    odds = torch.sigmoid(logits)
    noise = _chance(sampler, classes, labels, dist).to(x.dtype) * num_neg_samples
    costs = torch.cat(
        [
            -torch.log(odds[:, :true] / (odds[:, :true] + noise[:, :true])),
            -torch.log(noise[:, true:] / (odds[:, true:] + noise[:, true:])),
        ],
        1,
    )
    cost = costs.sum(1, keepdim=True)
    if sample_weight is not None:
        cost = cost * sample_weight.reshape(-1, 1)
    return [cost, odds, labels]


def _tree_shape(x: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del others, settings
    return [(x[0], 1)]


@op(
    "hierarchical_sigmoid",
    "X W Label PathTable? PathCode? Bias?",
    lod="none",
    infer=_tree_shape,
)
def hierarchical_sigmoid(
    x: Tensor,
    weight: Tensor,
    label: Tensor,
    table: Tensor | None,
    code: Tensor | None,
    bias: Tensor | None,
    *,
    num_classes: int,
) -> Tensor:
    """Return the loss along each label's path in a tree of classes.

    The default is the complete binary tree, in which the bits of label + num_classes give the path.
    Each step after the end of a path adds log 2, as in Fluid.
    """
    if table is None or code is None:
        nodes, bits, there = _binary_paths(label.reshape(-1)[: len(x)].long(), num_classes)
    else:
        there = table >= 0
        nodes, bits = table.clamp(min=0).long(), code.to(x.dtype) * there
    scores = (weight[nodes] * x[:, None]).sum(-1)
    if bias is not None:
        scores = scores + bias.reshape(-1)[nodes]
    scores = torch.where(there, scores, 0.0)
    cut = scores.clamp(-40.0, 40.0)
    return (functional.softplus(cut) - bits.to(x.dtype) * cut).sum(1, keepdim=True)


def _binary_paths(label: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    codes = (label + classes)[:, None]
    steps = torch.arange((classes - 1).bit_length())
    nodes = (codes >> (steps + 1)) - 1
    there = nodes >= 0
    return nodes.clamp(min=0), ((codes >> steps) & 1) * there, there


def _sample_shapes(logits: Shape, label: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del others
    return [(logits[0], label[1] + settings["num_samples"])]


@op(
    "sample_logits",
    "Logits Labels CustomizedSamples? CustomizedProbabilities?",
    "SampledLogits",
    lod="none",
    infer=_sample_shapes,
)
def sample_logits(
    logits: Tensor,
    label: Tensor,
    samples: Tensor | None,
    chances: Tensor | None,
    *,
    num_samples: int,
    remove_accidental_hits: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the logits of the labels and sampled classes, minus the log of their probabilities."""
    label = label.long()
    true = label.shape[1]
    if samples is None or chances is None:
        samples, chances = _unique_samples(logits.shape[1], label, num_samples, generator)
    picked = logits.gather(1, samples.long())
    if remove_accidental_hits:
        hits = (samples[:, true:, None] == label[:, None]).any(-1)
        picked = torch.cat([picked[:, :true], picked[:, true:] - 1e20 * hits], 1)
    return (picked - chances.clamp(min=1e-38).log()).clamp(-1e20, 1e20)


def _unique_samples(
    classes: int, label: Tensor, count: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Sample `count` distinct classes, shared by all examples.

    Returns them with their probabilities.
    """
    if count > classes:
        raise ValueError(
            f"num_samples must be at most {classes}, the number of classes, got {count}"
        )
    found: dict[int, None] = {}
    tries = 0
    while len(found) < count:
        for number in _draw("log_uniform", classes, (count,), None, generator).tolist():
            tries += 1
            found.setdefault(number)
            if len(found) == count:
                break
    drawn = torch.tensor(list(found)).expand(len(label), -1)
    samples = torch.cat([label, drawn], 1)
    once = _chance("log_uniform", classes, samples, None)
    return samples, -torch.expm1(tries * torch.log1p(-once))


@op("first_classes", "X Labels", lod="none")
def first_classes(x: Tensor, label: Tensor) -> Tensor:
    """Return a mask that is 1 at the sampled logits that belong to labels."""
    made = torch.zeros_like(x)
    made[:, : label.shape[1]] = 1.0
    return made


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
    """Return the noise-contrastive loss: input [N, D], label int64[N, T] -> [N, 1].

    num_neg_samples: number of negative classes per example, 10 by default.
    sampler: "uniform", "log_uniform", or "custom_dist" with the probabilities of all classes.
    """
    del is_sparse
    helper = LayerHelper("nce", name)
    if sampler not in _SAMPLERS or (sampler == "custom_dist") != (custom_dist is not None):
        raise helper.refuse(
            f"sampler must be one of {', '.join(_SAMPLERS)}, and only the last takes custom_dist; "
            f"got {sampler!r}"
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
        raise helper.refuse(f"custom_dist has shape {chances.shape}, expected ({classes},)")
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
    """Return the hierarchical sigmoid loss: input [N, D], label int64[N, 1] -> [N, 1].

    path_table, path_code: with is_custom, the inner nodes from a label's leaf to the root, and the
        branch (0 or 1) taken at each, int64[N, L] padded with -1; num_classes is then the number of
        inner nodes.
    """
    del is_sparse
    helper = LayerHelper("hierarchical_sigmoid", name)
    given = path_table is not None and path_code is not None
    if given != is_custom or (path_table is None) != (path_code is None):
        raise helper.refuse(
            "path_table and path_code are required with is_custom=True, and not allowed without it"
        )
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
    """Return the cross entropy over the label and some sampled classes: [N, 1].

    customized_samples: int64[N, num_true + num_samples], with the labels first.
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
