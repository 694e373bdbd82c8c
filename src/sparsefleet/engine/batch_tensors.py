"""Nested structures of tensors, which make up batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["as_tensors", "first_tensor", "moved", "register_tensor_type"]

Kind = TypeVar("Kind")

_converters: dict[type[Any], Callable[[Any], Any]] = {}


def register_tensor_type(kind: type[Kind], convert: Callable[[Kind], Any]) -> None:
    """Register a type that `as_tensors` converts to a tensor or a tuple of tensors."""
    _converters[kind] = convert


def as_tensors(value: Any) -> Any:
    """Return the same structure of tuples, lists and dicts, with NumPy arrays as tensors.

    Tensors share memory with the arrays. Types registered with `register_tensor_type` are converted
    too.
    """
    if isinstance(value, Tensor):
        return value
    if type(value) is tuple and all(type(part) is Tensor for part in value):
        return value  # the most common kind of batch needs no copy
    if isinstance(value, np.ndarray):
        return _as_tensor(value)
    if isinstance(value, tuple):
        parts = [as_tensors(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [as_tensors(part) for part in value]
    if isinstance(value, Mapping):
        return {name: as_tensors(part) for name, part in value.items()}
    for kind, convert in _converters.items():
        if isinstance(value, kind):
            return convert(value)
    return value


def moved(value: Any, device: torch.device | None) -> Any:
    """Return the same structure with its tensors on the device; None leaves them unchanged."""
    if device is None:
        return value
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=value.is_pinned())
    if isinstance(value, tuple):
        parts = [moved(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [moved(part, device) for part in value]
    if isinstance(value, Mapping):
        return {name: moved(part, device) for name, part in value.items()}
    return value


def first_tensor(value: Any) -> Tensor | None:
    """Return the least deeply nested tensor, which has one entry per example.

    The values in a nested pair (values, offsets) may have any number of entries.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for part in sorted(value, key=lambda part: not isinstance(part, Tensor)):
            found = first_tensor(part)
            if found is not None:
                return found
    return None


def _as_tensor(array: NDArray[Any]) -> Tensor:
    # Torch can share memory only if it is writable and has no negative strides.
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)
