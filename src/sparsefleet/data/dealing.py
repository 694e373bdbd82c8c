"""Which worker gets which record in a global shuffle. Letters: R records, W workers."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.data.memory_records import MemoryRecords

Ranks = NDArray[np.uint16]


class Dealer(Protocol):
    """Says where each record goes."""

    def ranks(self, begin: int, end: int) -> Ranks:
        """The workers of the records from `begin` up to `end`."""


class RandomDealer:
    """As many records for each worker, one more or less, at random; the same for the same seed.

    >>> dealer = RandomDealer(7, 3, seed=(1, 0))
    >>> sorted(np.bincount(dealer.ranks(0, 7)).tolist())
    [2, 2, 3]
    """

    def __init__(self, num_records: int, num_workers: int, seed: tuple[int, ...]) -> None:
        rng = np.random.default_rng(seed)
        # Who gets one more is drawn as well: many workers with a few records each come out even.
        turn = np.roll(np.arange(num_workers, dtype=np.uint16), rng.integers(num_workers))
        self._ranks: Ranks = np.resize(turn, num_records)
        rng.shuffle(self._ranks)

    def ranks(self, begin: int, end: int) -> Ranks:
        return self._ranks[begin:end]


class TextDealer:
    """Records of equal text go to the same worker: hash64(text) % W."""

    def __init__(self, records: MemoryRecords, column: int, num_workers: int) -> None:
        self._column = records.columns[column] if records.columns else None
        self._num_workers = num_workers

    def ranks(self, begin: int, end: int) -> Ranks:
        if self._column is None:
            return np.empty(0, np.uint16)
        texts, offsets = self._column.take(np.arange(begin, end, dtype=np.uint32))
        assert offsets is not None
        hashes = _core.hash_texts(texts, offsets, 0).view(np.uint64)
        ranks: Ranks = (hashes % np.uint64(self._num_workers)).astype(np.uint16)
        return ranks
