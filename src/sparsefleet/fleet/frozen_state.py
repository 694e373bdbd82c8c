"""What no table holds though all workers must begin with the same."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.dense_optimizer import DenseGroup

__all__ = ["FrozenState"]


class FrozenState:
    """The parameters that no optimizer holds, and the buffers, of a model; of whatever type."""

    def __init__(self, model: nn.Module, groups: Sequence[DenseGroup]) -> None:
        optimised = {id(p) for group in groups for p in group.parameters}
        tensors = [p.data for p in model.parameters() if id(p) not in optimised]
        tensors += list(model.buffers())
        self._tensors = [tensor for tensor in tensors if tensor.numel()]

    def to_bytes(self) -> bytes:
        """The values, for other workers."""
        return b"".join(
            tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
            for tensor in self._tensors
        )

    def take(self, values: bytes) -> None:
        """Takes over the values of a worker with the same model."""
        sizes = [tensor.numel() * tensor.element_size() for tensor in self._tensors]
        if len(values) != sum(sizes):
            raise ConfigError(
                f"the model's buffers and frozen parameters have {sum(sizes)} bytes, those of the "
                f"first worker {len(values)}: all workers must make the same model"
            )
        begin = 0
        for tensor, size in zip(self._tensors, sizes, strict=True):
            part = torch.frombuffer(bytearray(values[begin : begin + size]), dtype=tensor.dtype)
            tensor.copy_(part.view(tensor.shape))
            begin += size
