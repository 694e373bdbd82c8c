"""What happened on the way to a prediction: the rows looked up, and what each layer put out."""

from __future__ import annotations

from typing import Any

from sparsefleet.export.feeds import Arrays
from sparsefleet.serve.http.inspection import inspect
from sparsefleet.serve.http.merging import BatchLayout
from sparsefleet.serve.predictor import Predictor

__all__ = ["trace"]

_MOST_EXAMPLES = 8


def trace(predictor: Predictor, layout: BatchLayout, arrays: Arrays) -> dict[str, Any]:
    """Of the first examples: their number, the arrays as the model got them, and the lookups."""
    count = min(layout.count(arrays), _MOST_EXAMPLES)
    first = layout.part(arrays, count)
    return {
        "examples": count,
        "inputs": {name: array.tolist() for name, array in first.items()},
        "lookups": inspect(predictor, first).lookups,
    }
