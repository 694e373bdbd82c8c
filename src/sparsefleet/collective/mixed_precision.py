"""Mixed precision: decides what runs in 16 bits, and scales the loss."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsefleet.collective.strategy import AmpConfig
from sparsefleet.errors import ConfigError

__all__ = ["LossScaler", "autocast_for", "half_dtype", "keep_in_float32", "submodules_named"]


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
