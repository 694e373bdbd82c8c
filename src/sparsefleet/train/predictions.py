"""From what a model puts out to probabilities, as its loss understands them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["predictions_for"]


def predictions_for(loss: Any) -> Callable[[Tensor], Tensor]:
    """How outputs that this loss is given become probabilities; as they are, for a loss unknown.

    >>> predictions_for(nn.BCEWithLogitsLoss())(torch.tensor([0.0]))
    tensor([0.5000])
    >>> predictions_for(functional.cross_entropy)(torch.tensor([[1.0, 1.0]]))
    tensor([[0.5000, 0.5000]])
    >>> predictions_for(nn.MSELoss())(torch.tensor([3.0]))
    tensor([3.])
    """
    while isinstance(loss, functools.partial):
        loss = loss.func
    if isinstance(loss, nn.BCEWithLogitsLoss) or loss is _BCE_WITH_LOGITS:
        return torch.sigmoid
    if isinstance(loss, nn.CrossEntropyLoss) or loss is functional.cross_entropy:
        return functools.partial(torch.softmax, dim=1)
    if isinstance(loss, nn.NLLLoss) or loss is functional.nll_loss:
        return torch.exp
    return _unchanged


_BCE_WITH_LOGITS = functional.binary_cross_entropy_with_logits


def _unchanged(output: Tensor) -> Tensor:
    return output
