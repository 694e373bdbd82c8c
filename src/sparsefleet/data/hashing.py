"""Texts as 64-bit ids, the same in every process, on every machine and in every version."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core


def hash64(text: str | bytes, seed: int = 0) -> int:
    """XXH64 of the bytes, of a str those of UTF-8; seed in 0..2^64 - 1. See docs/data.md.

    >>> hash64("xxhash")
    3665147885093898016
    >>> hash64("xxhash", seed=20141025)
    13067679811253438005
    """
    return _core.hash64(text, seed)


def hash_ids(texts: Iterable[str | bytes], seed: int = 0) -> NDArray[np.int64]:
    """`hash64` of each text as int64[N], by bit pattern: ids for an embedding.

    >>> hash_ids(["a", "b"]) == np.array([hash64("a"), hash64("b")], np.uint64).view(np.int64)
    array([ True,  True])
    """
    hashes = np.fromiter((_core.hash64(text, seed) for text in texts), np.uint64)
    return hashes.view(np.int64)
