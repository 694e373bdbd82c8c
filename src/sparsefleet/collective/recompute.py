"""Activations that are computed again in the backward pass instead of being kept."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from sparsefleet.collective.submodules import submodules_named
from sparsefleet.errors import ConfigError
from sparsefleet.nn.sparse_module import SparseModule

__all__ = ["recompute_submodules"]

_FIELD = "CollectiveStrategy.recompute"


def recompute_submodules(module: nn.Module, names: Iterable[str]) -> None:
    """Has each named submodule keep its inputs only; its forward runs again before its backward.

    Results are the same bits: random numbers, as dropout draws them, are drawn again as they
    were, and batch norms follow a batch once. Otherwise a submodule must do nothing in its forward
    that may not be done twice; one with rows of a table is refused.
    """
    for submodule in submodules_named(module, names, _FIELD):
        for inner in submodule.modules():
            if isinstance(inner, SparseModule):
                raise ConfigError(
                    f"{_FIELD} names a submodule with the rows of table '{inner.name}', which are "
                    "fetched once a step: name submodules beside or above it in the data's way"
                )
        if getattr(submodule.forward, "func", None) is not _recomputed:
            submodule.forward = functools.partial(_recomputed, submodule, submodule.forward)


def _recomputed(module: nn.Module, forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **named)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return contextlib.nullcontext(), _without_following(module)

    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **named)


@contextlib.contextmanager
def _without_following(module: nn.Module) -> Iterator[None]:
    """Running statistics of batch norms are as before: they have followed this batch already."""
    kept = [
        (buffer.data, buffer.data.clone())
        for inner in module.modules()
        if isinstance(inner, _BatchNorm) and inner.training
        for buffer in inner.buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for buffer, before in kept:
            buffer.copy_(before)
