"""Which shard of a checkpoint a key is in: the server that owned it when it was saved."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["shard_of"]


def shard_of(keys: NDArray[np.uint64], num_shards: int) -> NDArray[np.uint32]:
    """The shard, of `num_shards`, of each key: uint64[N] -> uint32[N]. `OwnerOf` of the core.

    Format: docs/checkpoint_format.md has the formula; do not change.

    >>> shard_of(np.array([7, 8], np.uint64), 1)
    array([0, 0], dtype=uint32)
    """
    if num_shards <= 1:
        return np.zeros(len(keys), np.uint32)
    x = keys ^ np.uint64(0x5350464C45455421)
    x += np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    shards: NDArray[np.uint64] = ((x >> np.uint64(32)) * np.uint64(num_shards)) >> np.uint64(32)
    return shards.astype(np.uint32)
