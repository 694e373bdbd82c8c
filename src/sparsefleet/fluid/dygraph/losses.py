"""Losses as layers."""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid.dygraph.layer import Layer
from sparsefleet.fluid.operators import activations, elementwise, losses, reductions
from sparsefleet.fluid.operators.layer_helper import LayerHelper

__all__ = ["BCELoss", "L1Loss", "MSELoss", "NLLLoss"]


class _Loss(Layer):
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
        self._reduction = reduction

    def _reduced(self, loss: Any) -> Any:
        if self._reduction == "none":
            return loss
        made = reductions.reduce_mean if self._reduction == "mean" else reductions.reduce_sum
        return made(loss)


class MSELoss(_Loss):
    """Computes the squared difference between input and label."""

    def forward(self, input: Any, label: Any) -> Any:
        return self._reduced(losses.square_error_cost(input, label))


class L1Loss(_Loss):
    """Computes the absolute difference between input and label."""

    def forward(self, input: Any, label: Any) -> Any:
        return self._reduced(activations.abs(elementwise.elementwise_sub(input, label)))


class BCELoss(_Loss):
    """Computes the binary cross-entropy, the negative log of the label's probability."""

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._weight = weight

    def forward(self, input: Any, label: Any) -> Any:
        helper = LayerHelper("bce_loss")
        loss = helper.add("bce_loss", {"X": input, "Label": label})
        if self._weight is not None:
            loss = elementwise.elementwise_mul(loss, self._weight)
        return self._reduced(loss)


class NLLLoss(_Loss):
    """Computes the negative log-probability of the label, weighted by class."""

    def __init__(
        self, weight: Any = None, reduction: str = "mean", ignore_index: int = -100
    ) -> None:
        super().__init__(reduction)
        self._weight, self._ignore_index = weight, ignore_index

    def forward(self, input: Any, label: Any) -> Any:
        helper = LayerHelper("nll_loss")
        attrs = {"reduction": self._reduction, "ignore_index": self._ignore_index}
        inputs = {"X": input, "Label": label, "Weight": self._weight}
        return helper.add("nll_loss", inputs, attrs)
