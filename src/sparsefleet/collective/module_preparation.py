"""Prepares a module for training with a strategy: precision, recomputation, kernel fusion."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from sparsefleet.collective.mixed_precision import keep_in_float32, submodules_named
from sparsefleet.collective.strategy import CollectiveStrategy
from sparsefleet.collective.sync_batch_norm import NormGroup, convert_batch_norms
from sparsefleet.collective.world import World
from sparsefleet.errors import ConfigError
from sparsefleet.nn.sparse_module import SparseModule

__all__ = [
    "can_compile",
    "compile_module",
    "found_compiler",
    "prepare_module",
    "recompute_submodules",
    "warn_fusion_is_off",
]


_FIELD = "CollectiveStrategy.recompute"
_log = logging.getLogger("sparsefleet.collective")


def recompute_submodules(module: nn.Module, names: Iterable[str]) -> None:
    """Make each named submodule keep only its inputs, and rerun its forward before its backward.

    Results are bit-identical: random numbers, as for dropout, are repeated, and batch norms update
    their statistics once. Any other side effect of a forward pass happens twice; submodules with
    embedding tables are rejected.
    """
    for submodule in submodules_named(module, names, _FIELD):
        for inner in submodule.modules():
            if isinstance(inner, SparseModule):
                raise ConfigError(
                    f"{_FIELD} names a submodule that looks up table '{inner.name}', whose rows "
                    "are fetched once per step: name only submodules without tables"
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
    """On exit, restore the running statistics of batch norms; they already include this batch."""
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


def prepare_module(
    module: nn.Module, world: World, strategy: CollectiveStrategy
) -> tuple[nn.Module, NormGroup | None]:
    """Apply the strategy to a module and return the module. All ranks must call it.

    Also return, for ``CollectiveTraining``, the group of the module's batch norms if they are
    synchronized.

    The module is modified in place, unless it is itself a batch norm; parameters keep their names.
    The order is batch norms, float32 parts, recomputation around them, and compilation of the
    result.
    """
    norm_group = None
    if strategy.sync_batch_norm and world.size > 1:
        norm_group = NormGroup(world)
        module = convert_batch_norms(module, norm_group)
    if strategy.amp is not None:
        keep_in_float32(module, strategy.amp.float32_modules)
    recompute_submodules(module, strategy.recompute)
    if strategy.compile:
        compile_module(module)
    return module, norm_group


def found_compiler() -> str | None:
    """Return the C++ compiler that torch.compile would use, or None."""
    names = [os.environ.get("CXX", ""), "g++", "clang++", "c++"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


def compile_module(module: nn.Module) -> bool:
    """Make ``module`` compile its forward on the first call.

    If there is no compiler, warn once and return False.
    """
    if not can_compile():
        return False
    module.compile()
    return True


def can_compile() -> bool:
    """Return whether torch.compile works on this machine; if not, warn once."""
    if found_compiler() is None:
        warn_fusion_is_off("no C++ compiler was found")
        return False
    return True


@functools.cache
def warn_fusion_is_off(reason: str) -> None:
    """Warn, once per reason, that kernel fusion is off."""
    _log.warning("kernel fusion is off: %s; training continues without it", reason)
