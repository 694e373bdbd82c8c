"""Counts of what was right. Letters: N examples, T thresholds."""

from __future__ import annotations

import torch

from sparsefleet.fluid.lowering.registry import op

Tensor = torch.Tensor


@op("accuracy", "Out Indices Label", "Accuracy Correct Total", lod="none")
def accuracy(values: Tensor, indices: Tensor, label: Tensor) -> list[Tensor]:
    """The share of rows whose label is among the k best."""
    del values
    right = (indices == label.reshape(-1, 1)).any(1).sum().reshape(1)
    total = torch.full_like(right, len(indices))
    return [right.float() / max(len(indices), 1), right.int(), total.int()]


def _auc_shape(*shapes: object, **settings: object) -> list[tuple[int, ...]]:
    del shapes, settings
    return [(1,)]


@op("auc", "Predict Label StatPos StatNeg", "AUC", lod="none", has_effect=True, infer=_auc_shape)
def auc(
    predict: Tensor,
    label: Tensor,
    positives: Tensor,
    negatives: Tensor,
    *,
    num_thresholds: int,
    slide_steps: int = 0,
) -> Tensor:
    """Adds the batch to the counts, which it changes in place, and gives the area: float64[1].

    With slide_steps k > 0 the counts are k windows of T + 1, their sum, and the number of steps.
    """
    scores, labels = predict.detach()[:, -1], label.reshape(-1)
    if scores.numel() and not bool(((scores >= 0) & (scores <= 1)).all()):
        raise ValueError("predictions must be probabilities in 0..1")
    width = num_thresholds + 1
    buckets = (scores * num_thresholds).long()
    found = torch.bincount(buckets[labels > 0], minlength=width)
    found_negative = torch.bincount(buckets[labels == 0], minlength=width)
    pairs = ((positives, found), (negatives, found_negative))
    counts = [
        _slide(state.view(-1), new, slide_steps) if slide_steps else state.view(-1).add_(new)
        for state, new in pairs
    ]
    return _area(*counts)


def _slide(state: Tensor, new: Tensor, steps: int) -> Tensor:
    """Puts the batch in the place of the oldest one; the sum over the windows."""
    width = len(new)
    slot = int(state[-1]) % steps
    window = state[slot * width : (slot + 1) * width]
    total = state[steps * width : (steps + 1) * width]
    total += new - window
    window.copy_(new)
    state[-1] += 1
    return total


def _area(positives: Tensor, negatives: Tensor) -> Tensor:
    """Trapezoids from the highest bucket down; 0 if a class is missing."""
    right = torch.cumsum(positives.flip(0), 0).double()
    wrong = torch.cumsum(negatives.flip(0), 0).double()
    product = right[-1] * wrong[-1]
    if product == 0:
        return torch.zeros(1, dtype=torch.float64)
    heights = right * 2 - positives.flip(0)
    return (negatives.flip(0).double() * heights).sum().div(2 * product).reshape(1)
