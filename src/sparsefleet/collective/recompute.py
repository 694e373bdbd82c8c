"""Activations that are computed again in the backward pass instead of being kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sparsefleet.collective.submodules import submodules_named

__all__ = ["recompute_submodules"]


def recompute_submodules(module: nn.Module, names: Iterable[str]) -> None:
    """Has each named submodule keep its inputs only; its forward runs again before its backward.

    Results are the same bits: random numbers, as dropout draws, are drawn again as they were.
    A submodule must not do anything in its forward that may not be done twice. Batch norm would
    follow its batches twice: it does so once here.
    """
    for submodule in submodules_named(module, names, "CollectiveStrategy.recompute"):
        submodule.forward = functools.partial(_recomputed, submodule.forward)


def _recomputed(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **named)
    return checkpoint(forward, *inputs, use_reentrant=False, **named)
