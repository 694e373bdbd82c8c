"""One batch: what goes into the model, what it is compared with, and how many examples it has.

Letters: B examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sparsefleet.errors import ConfigError

__all__ = ["Batch", "as_batch", "as_tensors", "describe", "moved", "run_model"]


class Batch(NamedTuple):
    """A batch in the form in which training threads use it."""

    number: int
    """Place in this pass over the data, from 1."""
    inputs: Any
    """A tensor, a list or tuple of arguments, or a dict of named ones."""
    labels: Any
    """What the loss compares the output with; None where the data has none."""
    size: int
    """Examples in it."""


def as_batch(raw: Any, number: int, *, labelled: bool) -> Batch:
    """`raw` as `(inputs, labels)` or, of more than two, `(*inputs, labels)`.

    Not `labelled`: all of it is input. NumPy arrays become tensors over the same memory.
    """
    try:
        value = as_tensors(raw)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"batch {number}: an array cannot become a tensor: {error}") from error
    if not labelled:
        return Batch(number, value, None, _num_examples(value, None))
    if not isinstance(value, (tuple, list)) or len(value) < 2:
        raise ConfigError(
            f"batch {number} must be (inputs, labels) or (*inputs, labels), got "
            f"{describe(value)}; if the model computes the loss itself, give loss=None. A Reader "
            "is told which column it is by label=, a Dataset by dataset.batches(label=...)"
        )
    # A tensor of Fluid may become a (values, offsets): one argument, not two.
    is_one = len(value) == 2 and not hasattr(raw[0], "model_input")
    inputs = value[0] if is_one else tuple(value[:-1])
    return Batch(number, inputs, value[-1], _num_examples(inputs, value[-1]))


def as_tensors(value: Any) -> Any:
    """The same nest of tuples, lists and dicts with tensors in the place of NumPy arrays.

    What has a method `model_input()`, as the tensors of Fluid's loaders, is replaced by its result.
    """
    if isinstance(value, Tensor):
        return value
    if type(value) is tuple and all(type(part) is Tensor for part in value):
        return value  # the most common batch, which is not worth copying
    if hasattr(value, "model_input"):
        return value.model_input()
    if isinstance(value, np.ndarray):
        return _as_tensor(value)
    if isinstance(value, tuple):
        parts = [as_tensors(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [as_tensors(part) for part in value]
    if isinstance(value, Mapping):
        return {name: as_tensors(part) for name, part in value.items()}
    return value


def moved(value: Any, device: torch.device | None) -> Any:
    """The same nest with its tensors on that device; as it is for None."""
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


def run_model(model: nn.Module, inputs: Any) -> Any:
    """A tensor is the one argument, a list or tuple are all, a dict are those with names."""
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(inputs)


def _as_tensor(array: NDArray[Any]) -> Tensor:
    # Torch shares memory only where it could also write and walk forwards.
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def _num_examples(inputs: Any, labels: Any) -> int:
    """B, from the labels; where there are none, from the first tensor of the inputs."""
    tensor = labels if isinstance(labels, Tensor) else _first_tensor((labels, inputs))
    return tensor.size(0) if tensor is not None and tensor.dim() > 0 else 1


def _first_tensor(value: Any) -> Tensor | None:
    """The first that lies least deep: the values of a (values, offsets) are not one an example."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for part in sorted(value, key=lambda part: not isinstance(part, Tensor)):
            found = _first_tensor(part)
            if found is not None:
                return found
    return None


def describe(value: Any) -> str:
    """Of what kind, for an error."""
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a tensor of shape {list(value.shape)} and type {dtype}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
