"""Much of the forward pass in 16 bits: which, and where not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from sparsefleet.collective.strategy import AmpConfig
from sparsefleet.collective.submodules import submodules_named

__all__ = ["autocast_for", "half_dtype", "keep_in_float32"]


def half_dtype(config: AmpConfig, device: torch.device) -> torch.dtype:
    """The 16-bit type that the config means on that device.

    >>> half_dtype(AmpConfig(), torch.device("cpu"))
    torch.bfloat16
    """
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cpu" else torch.float16
    return torch.bfloat16 if config.dtype == "bfloat16" else torch.float16


def autocast_for(config: AmpConfig | None, device: torch.device) -> torch.autocast:
    """The context of a forward pass; without a config it changes nothing.

    Matrix products and convolutions run in 16 bits, sums, exponentials and losses in 32, the rest
    as its inputs are: torch's lists, which cover Fluid's. Parameters and their gradients stay
    float32.
    """
    if config is None:
        return torch.autocast(device.type, enabled=False)
    return torch.autocast(device.type, dtype=half_dtype(config, device))


def keep_in_float32(module: nn.Module, names: Iterable[str]) -> None:
    """Has the named submodules compute in float32, whatever the context; "" is the module."""
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
