"""Prepares a module for training with a strategy: precision, recomputation, kernel fusion."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from sparsefleet.collective.strategy import AmpConfig, CollectiveStrategy
from sparsefleet.collective.sync_batch_norm import NormGroup, convert_batch_norms
from sparsefleet.collective.world import World
from sparsefleet.errors import ConfigError
from sparsefleet.nn.sparse_module import SparseModule

__all__ = [
    "LossScaler",
    "autocast_for",
    "can_compile",
    "compile_module",
    "found_compiler",
    "half_dtype",
    "keep_in_float32",
    "prepare_module",
    "recompute_submodules",
    "submodules_named",
    "warn_fusion_is_off",
]


class LossScaler:
    """The loss scale and its counters, as in Fluid's ``decorate``. Not thread-safe.

    A step without overflow is good and a step with overflow is bad; each kind resets the count of
    the other. The scale grows once there are *more* than ``incr_every_n_steps`` good steps in a
    row, and shrinks once there are more than ``decr_every_n_nan_or_inf`` bad steps.

    >>> scaler = LossScaler(AmpConfig(init_loss_scaling=8.0, decr_every_n_nan_or_inf=1,
    ...                               decr_ratio=0.5))
    >>> [scaler.update(is_finite=finite) for finite in (False, False)]
    [8.0, 4.0]
    """

    def __init__(self, config: AmpConfig) -> None:
        self._config = config
        self._scale = np.float32(config.init_loss_scaling)
        self._good_steps = 0
        self._bad_steps = 0

    @property
    def scale(self) -> float:
        """The factor by which the loss is multiplied now; as in Fluid, a float32 number."""
        return float(self._scale)

    @property
    def is_dynamic(self) -> bool:
        """Whether gradients are checked for overflow and the scale adapts."""
        return self._config.dynamic

    @property
    def good_steps(self) -> int:
        """Number of consecutive steps without overflow since the scale last changed."""
        return self._good_steps

    @property
    def bad_steps(self) -> int:
        """Number of consecutive overflows."""
        return self._bad_steps

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss to call ``backward`` on, in float32 to avoid overflow."""
        return loss.float() * self.scale

    def update(self, *, is_finite: bool) -> float:
        """Count a step with or without overflow; return the scale for the next step.

        A static scale does not change.
        """
        if not self._config.dynamic:
            return self.scale
        if is_finite:
            self._count_good()
        else:
            self._count_bad()
        return self.scale

    def _count_good(self) -> None:
        self._bad_steps = 0
        self._good_steps += 1
        if self._good_steps > self._config.incr_every_n_steps:
            with np.errstate(over="ignore"):
                larger = self._scale * np.float32(self._config.incr_ratio)
            if np.isfinite(larger):
                self._scale = larger
            self._good_steps = 0

    def _count_bad(self) -> None:
        self._good_steps = 0
        self._bad_steps += 1
        if self._bad_steps > self._config.decr_every_n_nan_or_inf:
            smaller = self._scale * np.float32(self._config.decr_ratio)
            self._scale = max(np.float32(1.0), smaller)
            self._bad_steps = 0

    def state_dict(self) -> dict[str, float | int]:
        """Return the scale and counters, with Fluid's names."""
        return {
            "loss_scaling": self.scale,
            "num_good_steps": self._good_steps,
            "num_bad_steps": self._bad_steps,
        }

    def load_state_dict(self, state: Mapping[str, float | int]) -> None:
        """Restore the state that ``state_dict`` returned."""
        scale = float(state["loss_scaling"])
        if not (math.isfinite(scale) and scale > 0):
            raise ConfigError(f"LossScaler: loss_scaling must be a number > 0, got {scale}")
        self._scale = np.float32(scale)
        self._good_steps = int(state["num_good_steps"])
        self._bad_steps = int(state["num_bad_steps"])


def submodules_named(module: nn.Module, names: Iterable[str], field: str) -> list[nn.Module]:
    """Return the submodules with these names; errors refer to ``field``.

    >>> submodules_named(nn.Sequential(nn.Linear(2, 2)), ["0"], "recompute")
    [Linear(in_features=2, out_features=2, bias=True)]
    """
    known = dict(module.named_modules())
    found = []
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{field} names '{name}', which is not a submodule of {type(module).__name__}; its "
                f"submodules are {', '.join(filter(None, known)) or 'none'}"
            )
        found.append(known[name])
    return found


def half_dtype(config: AmpConfig, device: torch.device) -> torch.dtype:
    """Return the config's 16-bit type on the given device.

    >>> half_dtype(AmpConfig(), torch.device("cpu"))
    torch.bfloat16
    """
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cpu" else torch.float16
    return torch.bfloat16 if config.dtype == "bfloat16" else torch.float16


def autocast_for(config: AmpConfig | None, device: torch.device) -> AbstractContextManager[object]:
    """Return a context manager for a forward pass; without a config, it does nothing.

    Matrix products and convolutions run in 16 bits; sums, exponentials and losses in 32 bits;
    everything else in the type of its inputs. These are torch's lists of operations, which include
    Fluid's. Parameters and their gradients stay float32.
    """
    if config is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=half_dtype(config, device))


def keep_in_float32(module: nn.Module, names: Iterable[str]) -> None:
    """Make the named submodules always compute in float32; "" is the module itself."""
    for submodule in submodules_named(module, names, "AmpConfig.float32_modules"):
        submodule.forward = functools.partial(_in_float32, submodule.forward)


def _in_float32(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    wide = [_widened(value) for value in inputs]
    wide_named = {name: _widened(value) for name, value in named.items()}
    kind = next((v.device.type for v in wide if isinstance(v, torch.Tensor)), "cpu")
    with torch.autocast(kind, enabled=False):
        return forward(*wide, **wide_named)


def _widened(value: Any) -> Any:
    is_half = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if is_half else value


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
