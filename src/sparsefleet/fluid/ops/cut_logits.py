"""Logits as Fluid's softmax takes them: none more than 64 below the largest beside it.

So no probability is 0, and no loss of one is larger than 64.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["cut_logits"]

Tensor = torch.Tensor

_DEPTH = 64.0


class _Raised(torch.autograd.Function):
    """The larger of both; all of the gradient goes to the logits, also where they were raised."""

    @staticmethod
    def forward(context: Any, logits: Tensor, floor: Tensor) -> Tensor:
        del context
        return torch.maximum(logits, floor)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        del context
        return gradients[0], None


def cut_logits(logits: Tensor, axis: int) -> Tensor:
    """Logits with those far below the largest along the axis raised; gradients as without it."""
    if logits.is_meta or not logits.numel():
        return logits
    lowest, highest = torch.aminmax(logits.detach())  # one look tells that there are none
    if float(highest - lowest) <= _DEPTH:
        return logits
    floor = logits.detach().amax(axis, keepdim=True) - _DEPTH
    raised: Tensor = _Raised.apply(logits, floor)  # type: ignore[no-untyped-call]
    return raised
