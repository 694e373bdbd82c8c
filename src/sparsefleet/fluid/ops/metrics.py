"""Counts of what was right. Letters: N examples, T thresholds."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from sparsefleet.fluid.lowering.registry import op

Tensor = torch.Tensor
Counts = NDArray[np.int64]


@op("accuracy", "Out Indices Label", "Accuracy Correct Total", lod="none")
def accuracy(values: Tensor, indices: Tensor, label: Tensor) -> list[Tensor]:
    """The share of rows whose label is among the k best."""
    del values
    if label.numel() != len(indices) and not label.is_meta:
        raise ValueError(f"{len(indices)} rows, but {label.numel()} labels")
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
    scores, labels = predict.detach()[:, -1].cpu().numpy(), label.reshape(-1).cpu().numpy()
    # Not a number is in no range.
    if scores.size and not (scores.min() >= 0 and scores.max() <= 1):
        raise ValueError("predictions must be probabilities in 0..1")
    width = num_thresholds + 1
    buckets = (scores * scores.dtype.type(num_thresholds)).astype(np.int64)
    counts = []
    for state, is_in in ((positives, labels > 0), (negatives, labels == 0)):
        new = np.bincount(buckets[is_in], minlength=width)
        held = state.view(-1).cpu()  # the state itself, unless it is on a GPU
        kept = held.numpy()
        if slide_steps:
            counts.append(_slide(kept, new, slide_steps))
        else:
            kept += new
            counts.append(kept)
        if state.device != held.device:
            state.view(-1).copy_(held)
    return torch.from_numpy(_area(*counts)).to(predict.device)


def _slide(state: Counts, new: Counts, steps: int) -> Counts:
    """Puts the batch in the place of the oldest one; the sum over the windows."""
    width = len(new)
    slot = int(state[-1]) % steps
    window = state[slot * width : (slot + 1) * width]
    total = state[steps * width : (steps + 1) * width]
    total += new - window
    window[:] = new
    state[-1] += 1
    return total


def _area(positives: Counts, negatives: Counts) -> NDArray[np.float64]:
    """Trapezoids from the highest bucket down: float64[1]; 0 if a class is missing."""
    right = np.cumsum(positives[::-1], dtype=np.float64)
    product = right[-1] * negatives.sum()
    if product == 0:
        return np.zeros(1)
    heights = right * 2 - positives[::-1]
    return np.array([np.dot(negatives[::-1], heights) / (2 * product)])
