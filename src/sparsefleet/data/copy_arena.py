"""Memory for the parts of a column until the column is whole."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FIRST_BYTES = 1 << 16
_MOST_BYTES = 1 << 22
_ALIGNMENT = 8


class CopyArena:
    """Copies of arrays, side by side in pieces of up to some megabytes.

    A piece goes back to the system with the last copy in it. What is allocated array by array
    would stay with the heap, between other things, long after it was let go.

    >>> arena = CopyArena()
    >>> first, second = arena.copy(np.arange(3)), arena.copy(np.ones((2, 2), np.float32))
    >>> first.tolist(), second.tolist()
    ([0, 1, 2], [[1.0, 1.0], [1.0, 1.0]])
    """

    def __init__(self) -> None:
        self._piece: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._used = 0
        self._next_bytes = _FIRST_BYTES

    def copy(self, array: NDArray[Any]) -> NDArray[Any]:
        begin = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if begin + array.nbytes > len(self._piece):
            memory = mmap.mmap(
                -1, max(self._next_bytes, array.nbytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
            self._piece, begin = np.frombuffer(memory, np.uint8), 0
            self._next_bytes = min(2 * self._next_bytes, _MOST_BYTES)
        self._used = begin + array.nbytes
        kept = self._piece[begin : self._used].view(array.dtype).reshape(array.shape)
        kept[...] = array
        return kept
