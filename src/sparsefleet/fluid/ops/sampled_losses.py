"""Losses over many classes that look at a few of them. Letters: N examples, C classes, D width."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from sparsefleet.fluid.lowering.registry import Shape, op

Tensor = torch.Tensor


def _draw(
    sampler: str,
    classes: int,
    shape: tuple[int, ...],
    dist: Tensor | None,
    generator: torch.Generator | None,
) -> Tensor:
    """Class numbers int64 of this shape: "uniform", "log_uniform" or by `dist`."""
    if sampler == "uniform":
        return torch.randint(classes, shape, generator=generator)
    if sampler == "log_uniform":
        numbers = torch.exp(torch.rand(shape, generator=generator) * math.log(classes + 1)) - 1
        return numbers.long().clamp(0, classes - 1)
    assert dist is not None
    flat = torch.multinomial(dist, math.prod(shape), replacement=True, generator=generator)
    return flat.reshape(shape)


def _chance(sampler: str, classes: int, drawn: Tensor, dist: Tensor | None) -> Tensor:
    """How likely each class is to be drawn."""
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
def nce(
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
    """Noise-contrastive estimation, with own negatives for each example."""
    true = label.shape[1]
    shape = (len(x), num_neg_samples)
    # As 1.8.5: the logarithmic sampler never draws the last class.
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
    """The loss along the path of each label in a tree of classes.

    Without a tree of one's own it is the complete binary one, in which the bits of label +
    num_classes say the way. Steps beyond the end of a path add log 2 each, as in Fluid.
    """
    if table is None or code is None:
        nodes, bits, there = _binary_paths(label.reshape(-1).long(), num_classes)
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
    """Logits of the labels and of some other classes, less the logarithm of their chances."""
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
    """`count` different classes for all examples, and how likely each was to be among them."""
    if count > classes:
        raise ValueError(f"num_samples is {count}, but there are {classes} classes")
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
    """1 at the sampled logits that are those of labels."""
    made = torch.zeros_like(x)
    made[:, : label.shape[1]] = 1.0
    return made
