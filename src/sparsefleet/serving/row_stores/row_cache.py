"""A cache for one table's fetched rows, with a memory limit.

In shapes, U is the number of distinct keys, D the row width, S the number of sets, W the number of
rows per set.

Keys are hashed to sets; a set holds W rows, and a new row replaces the least recently used row.
Keys without a row are cached too. Cached data belongs to one version of a model and never changes,
so it never needs invalidation.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from sparsefleet.serving.export.keyed_rows import KeyedRows
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["FetchedTable", "RowCache", "distinct_keys"]


def distinct_keys(ids: NDArray[np.int64]) -> Keys:
    """Return the distinct keys in ids of any shape, in ascending order: uint64[U].

    >>> distinct_keys(np.array([[5, 3], [3, 5]]))
    array([3, 5], dtype=uint64)
    """
    return np.unique(np.ascontiguousarray(ids).reshape(-1).view(np.uint64))


class FetchedTable(KeyedRows):
    """A remote table with prefetched rows; other rows are looked up in the table itself.

    keys: uint64[U], ascending; rows: float32[U, D]; known: bool[U].
    """

    def __init__(
        self, table: KeyedRows, keys: Keys, rows: Floats, known: NDArray[np.bool_]
    ) -> None:
        super().__init__(table.entry, table.initial)
        self._table = table
        self._keys = keys
        self._rows = rows
        self._known = known

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        if not len(self._keys):
            return self._table.find(keys)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        here = self._keys[places] == keys
        rows, known = self._rows[places], self._known[places]
        if not here.all():
            rows[~here], known[~here] = self._table.find(keys[~here])
        return rows, known


_WAYS = 8
_EMPTY, _ROW, _NO_ROW = 0, 1, 2
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: Knuth's multiplicative hash


class RowCache:
    """A set-associative row cache. Each call handles a batch of keys at once. Thread-safe.

    max_bytes: limit on the memory of the cache. If a single set needs more, nothing is cached.

    >>> cache = RowCache(dim=1, max_bytes=1 << 16)
    >>> keys = np.array([4, 5], np.uint64)
    >>> cache.put(keys, np.array([[1.0], [0.0]], np.float32), np.array([True, False]))
    >>> rows, known, missing = cache.get(np.array([4, 5, 6], np.uint64))
    >>> rows.ravel(), known, missing
    (array([1., 0., 0.], dtype=float32), array([ True, False, False]), array([2]))
    """

    def __init__(self, *, dim: int, max_bytes: int, max_rows: int | None = None) -> None:
        entry_bytes = 8 + 8 + 1 + 4 * dim
        entries = max_bytes // entry_bytes
        if max_rows is not None:  # twice the number of slots, since sets fill unevenly
            entries = min(entries, 2 * max_rows + _WAYS)
        sets = entries // _WAYS
        self._dim = dim
        self._sets = np.uint64(sets)
        self._keys = np.zeros((sets, _WAYS), np.uint64)
        self._state = np.zeros((sets, _WAYS), np.uint8)
        self._asked = np.zeros((sets, _WAYS), np.uint64)
        self._rows = np.empty((sets, _WAYS, dim), np.float32)
        self._clock = np.uint64(1)  # 0 if never requested
        self._lock = threading.Lock()
        self.hits = 0

    @property
    def memory_bytes(self) -> int:
        """Return the maximum memory, which is allocated as the cache fills."""
        return self._keys.nbytes + self._state.nbytes + self._asked.nbytes + self._rows.nbytes

    def get(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_], NDArray[np.int64]]:
        """Look up distinct keys.

        Returns the rows, float32[U, D]; whether each key has a row, bool[U]; and the indices of
        keys that are not cached.
        """
        rows = np.zeros((len(keys), self._dim), np.float32)
        known = np.zeros(len(keys), np.bool_)
        if not self._sets:
            return rows, known, np.arange(len(keys))
        sets = self._set_of(keys)
        with self._lock:
            here = (self._keys[sets] == keys[:, None]) & (self._state[sets] != _EMPTY)
            hits = here.any(axis=1)
            at, ways = sets[hits], here.argmax(axis=1)[hits]
            known[hits] = self._state[at, ways] == _ROW
            rows[hits] = self._rows[at, ways]
            self._clock += np.uint64(1)
            self._asked[at, ways] = self._clock
            self.hits += len(at)
        return rows, known, np.flatnonzero(~hits)

    def put(self, keys: Keys, rows: Floats, known: NDArray[np.bool_]) -> None:
        """Cache the rows of distinct keys, float32[U, D], and whether each key has a row,
        bool[U].
        """
        if not self._sets:
            return
        sets, rest = self._set_of(keys), np.arange(len(keys))
        with self._lock:
            for _ in range(_WAYS):  # one key per set at a time
                if not len(rest):
                    return
                at, first = np.unique(sets[rest], return_index=True)
                these = rest[first]
                self._put_one_a_set(at, keys[these], rows[these], known[these])
                rest = np.delete(rest, first)

    def _put_one_a_set(
        self, sets: NDArray[np.int64], keys: Keys, rows: Floats, known: NDArray[np.bool_]
    ) -> None:
        here = (self._keys[sets] == keys[:, None]) & (self._state[sets] != _EMPTY)
        oldest = self._asked[sets].argmin(axis=1)
        ways = np.where(here.any(axis=1), here.argmax(axis=1), oldest)
        self._keys[sets, ways] = keys
        self._state[sets, ways] = np.where(known, _ROW, _NO_ROW)
        self._rows[sets, ways] = np.where(known[:, None], rows, 0.0)
        self._asked[sets, ways] = self._clock

    def _set_of(self, keys: Keys) -> NDArray[np.int64]:
        sets: Keys = ((keys * _SPREAD) >> np.uint64(32)) % self._sets
        return sets.astype(np.int64)
