"""Outputs of the model that outlive their step."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["KeptOutputs"]

_BLOCK_ELEMENTS = 1 << 17


class KeptOutputs:
    """Copies of outputs, many in one block of memory; what it has given out never changes.

    A small tensor that stays where it was made, among the activations of its step, parts their
    memory for good: steps to come find no place of the old size there and take new memory. A
    window of 50 batches made the heap of a worker several times as large as what is in use.

    A block is freed with the last output in it. Not thread-safe.

    >>> kept = KeptOutputs()
    >>> first, second = (kept.keep(torch.full((2,), value)) for value in (1.0, 2.0))
    >>> first.tolist(), second.tolist()
    ([1.0, 1.0], [2.0, 2.0])
    """

    def __init__(self) -> None:
        self._block = torch.empty(0, device="cpu")
        self._used = 0

    def keep(self, output: Tensor) -> Tensor:
        """A copy on the CPU, without graph, of the same shape and dtype."""
        if output.layout is not torch.strided:
            return output.detach().cpu()
        end = self._used + output.numel()
        if end > self._block.numel() or output.dtype != self._block.dtype:
            self._used, end = 0, output.numel()
            self._block = torch.empty(max(_BLOCK_ELEMENTS, end), dtype=output.dtype, device="cpu")
        kept = self._block[self._used : end].view(output.shape)
        self._used = end
        return kept.copy_(output.detach())
