"""Means over batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.average")

__all__ = ["WeightedAverage"]


class WeightedAverage:
    """The mean of numbers or arrays, each with a weight.

    >>> mean = WeightedAverage()
    >>> mean.add(value=2.0, weight=1)
    >>> mean.add(value=5.0, weight=2)
    >>> float(mean.eval())
    4.0
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """To nothing seen."""
        self.numerator: Any = None
        self.denominator: float = 0.0

    def add(self, value: Any, weight: float) -> None:
        """Counts a value."""
        for what, given in (("value", value), ("weight", weight)):
            if not isinstance(given, (int, float, np.number, np.ndarray)):
                raise ValueError(f"WeightedAverage: '{what}' must be a number, got {given!r}")
        part = np.asarray(value) * float(np.asarray(weight).reshape(()))
        self.numerator = part if self.numerator is None else self.numerator + part
        self.denominator += float(np.asarray(weight).reshape(()))

    def eval(self) -> Any:
        """The mean; ValueError if there is nothing to take it of."""
        if self.numerator is None or self.denominator == 0:
            raise ValueError("WeightedAverage: nothing to take the mean of: add values first")
        return self.numerator / self.denominator
