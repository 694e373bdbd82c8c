"""Metrics that a program computes: accuracy and AUC."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsefleet.fluid.framework import Variable, unique_name
from sparsefleet.fluid.lowering.registry import Shape, float_rule, op
from sparsefleet.fluid.operators.indexing import topk
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer

__all__ = ["accuracy", "auc"]

Tensor = torch.Tensor
Counts = NDArray[np.int64]


def _accuracy_shapes(
    values: Shape, indices: Shape, label: Shape, /, **attrs: Any
) -> list[Shape] | None:
    del values, attrs
    is_class = len(indices) == 2 and label in ((indices[0], 1), (indices[0],))
    return [(1,)] * 3 if is_class else None


@op(
    "accuracy",
    "Out Indices Label",
    "Accuracy Correct Total",
    lod="none",
    shape=float_rule(_accuracy_shapes, "float32", "int32", "int32", takes_indices=True),
)
def accuracy_op(values: Tensor, indices: Tensor, label: Tensor) -> list[Tensor]:
    """Return the fraction of rows whose label is among the k best classes."""
    del values
    if label.numel() != len(indices) and not label.is_meta:
        raise ValueError(
            f"got {len(indices)} rows and {label.numel()} labels, expected one label per row"
        )
    right = (indices == label.reshape(-1, 1)).any(1).sum().reshape(1)
    total = torch.full_like(right, len(indices))
    return [right.float() / max(len(indices), 1), right.int(), total.int()]


def _auc_shape(*shapes: object, **settings: object) -> list[tuple[int, ...]]:
    del shapes, settings
    return [(1,)]


@op("auc", "Predict Label StatPos StatNeg", "AUC", lod="none", has_effect=True, infer=_auc_shape)
def auc_op(
    predict: Tensor,
    label: Tensor,
    positives: Tensor,
    negatives: Tensor,
    *,
    num_thresholds: int,
    slide_steps: int = 0,
) -> Tensor:
    """Add the batch to the counts, in place, and return the area under the ROC curve: float64[1].

    With slide_steps k > 0, the state holds the counts of the last k batches (num_thresholds + 1
    each), their sum, and the number of steps.
    """
    scores, labels = predict.detach()[:, -1].cpu().numpy(), label.reshape(-1).cpu().numpy()
    # NaN is outside any range, so it is also an error.
    if scores.size and not (scores.min() >= 0 and scores.max() <= 1):
        raise ValueError(
            f"predictions must be probabilities in 0..1, got {scores.min():g}..{scores.max():g}"
        )
    width = num_thresholds + 1
    buckets = (scores * scores.dtype.type(num_thresholds)).astype(np.int64)
    counts = []
    for state, is_in in ((positives, labels > 0), (negatives, labels == 0)):
        new = np.bincount(buckets[is_in], minlength=width)
        held = state.view(-1).cpu()  # shares the state's memory, unless it is on a GPU
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
    """Replace the oldest batch in the sliding window with a new one.

    Returns the sum over the window.
    """
    width = len(new)
    slot = int(state[-1]) % steps
    window = state[slot * width : (slot + 1) * width]
    total = state[steps * width : (steps + 1) * width]
    total += new - window
    window[:] = new
    state[-1] += 1
    return total


def _area(positives: Counts, negatives: Counts) -> NDArray[np.float64]:
    """Return the area under the ROC curve as a sum of trapezoids, float64[1], or 0 if a class is
    missing.
    """
    right = np.cumsum(positives[::-1], dtype=np.float64)
    product = right[-1] * negatives.sum()
    if product == 0:
        return np.zeros(1)
    heights = right * 2 - positives[::-1]
    return np.array([np.dot(negatives[::-1], heights) / (2 * product)])


@layer
def accuracy(
    input: Variable,
    label: Variable,
    k: int = 1,
    correct: Variable | None = None,
    total: Variable | None = None,
) -> Variable:
    """Return the fraction of rows whose label is among the k best classes: float32[1]."""
    helper = LayerHelper("accuracy")
    values, indices = topk(input, k=k)
    result = helper.new_variable("float32", stop_gradient=True)
    outputs = {
        "Accuracy": result,
        "Correct": correct or helper.new_variable("int32", stop_gradient=True),
        "Total": total or helper.new_variable("int32", stop_gradient=True),
    }
    inputs = {"Out": values, "Indices": indices, "Label": helper.check_input(label, "label")}
    helper.append_op("accuracy", inputs, outputs)
    return result


@layer
def auc(
    input: Variable,
    label: Variable,
    curve: str = "ROC",
    num_thresholds: int = 2**12 - 1,
    topk: int = 1,
    slide_steps: int = 1,
) -> tuple[Variable, Variable, list[Variable]]:
    """Return the AUC so far, the AUC of the last slide_steps batches, and the counts.

    input: probabilities; the last column is for label 1. The counts are kept in the scope; set them
    to zero to start over. curve, topk: have no effect, as in Fluid.
    """
    del curve, topk
    helper = LayerHelper("auc")
    width = num_thresholds + 1
    batch_width = (1 + slide_steps) * width + 1 if slide_steps else width
    states = [
        helper.create_state(unique_name.generate("_generated_var"), shape, "int64")
        for shape in ([batch_width], [batch_width], [1, width], [1, width])
    ]
    found = []
    for positives, negatives, steps in ((*states[2:], 0), (*states[:2], slide_steps)):
        out = helper.new_variable("float64", stop_gradient=True)
        inputs = {"Predict": input, "Label": label, "StatPos": positives, "StatNeg": negatives}
        attrs = {"num_thresholds": num_thresholds, "slide_steps": steps}
        helper.append_op("auc", inputs, {"AUC": out}, attrs)
        found.append(out)
    return found[0], found[1], states
