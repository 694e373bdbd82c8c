"""Synchronizes a worker's skip-gram rows with the servers by exchanging deltas (GEO).

In shapes, V is the number of words on this worker, D the width of a vector, and N the number of
changed rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sparsefleet.embed.corpus import Vocabulary
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.optim import SGD
from sparsefleet.store import Constant, RemoteStore, TableSpec, Uniform

__all__ = ["ServerExchange", "SharedCounts"]

_TOTAL_KEY = np.array([-1], np.int64)
_BARRIER_S = 3600.0


class SharedCounts:
    """Word counts of all workers, in the table `name.counts` on the servers. Not thread-safe.

    Each count is stored as a row of width 2, which holds its upper and lower 20 bits, because
    float32 addition is exact only for integers of up to 24 bits.
    """

    def __init__(self, store: RemoteStore, role: RoleInfo, name: str) -> None:
        self._store = store
        self._role = role
        self._name = name
        self._table = f"{name}.counts"
        self._added: _CountRows | None = None
        self._undone: _CountRows | None = None
        """Counts that were added by a failed call, and that servers do not yet know to subtract."""

    def add(self, counted: Vocabulary, vocabulary: Vocabulary) -> None:
        """Add `counted` to the counts of all workers, and set those of `vocabulary` to the sums.

        Must be called by all workers.
        """
        store, table, workers = self._store, self._table, self._role.worker_num
        self._added = None
        zero = {"optimizer": SGD(lr=1.0), "initializer": Constant(0.0)}
        store.define(TableSpec(name=table, dim=2, **zero))  # type: ignore[arg-type]
        if self._undone is not None:
            keys, parts = self._undone
            store.push(table, keys, -parts, unique=True, add=True)
            self._undone = None
        rows = _count_rows(counted)
        store.push(table, *rows, unique=True, add=True)
        self._added = rows
        store.barrier(f"{self._name}/counted", workers, timeout_s=_BARRIER_S)
        keys = np.concatenate([vocabulary.keys(), _TOTAL_KEY])
        sums = store.pull(table, keys, train=False).astype(np.float64)
        added = np.rint(sums[:, 0] * 2**20 + sums[:, 1]).astype(np.uint64)
        vocabulary.set_counts(added[:-1], int(added[-1]))
        # The next counts must not reach a worker that has yet to read these.
        store.barrier(f"{self._name}/counts_read", workers, timeout_s=_BARRIER_S)

    def undo(self) -> None:
        """Take back what the last `add` sent; servers are told with the next one."""
        if self._added is not None:
            self._undone, self._added = self._added, None


_CountRows = tuple[NDArray[np.int64], NDArray[np.float32]]


def _count_rows(counted: Vocabulary) -> _CountRows:
    """Return keys and rows for the counts of all words, followed by their total."""
    keys = np.concatenate([counted.keys(), _TOTAL_KEY])
    counts = np.concatenate([counted.counts, [np.uint64(counted.total_words)]])
    parts = np.stack([counts >> np.uint64(20), counts & np.uint64(0xFFFFF)], axis=1)
    return keys, parts.astype(np.float32)


class ServerExchange:
    """Two tables on servers, and local copies of the rows that this worker uses. Not thread-safe.

    name: the tables are `name` (vectors) and `name.contexts`.
    """

    def __init__(
        self,
        store: RemoteStore,
        role: RoleInfo,
        name: str,
        keys: NDArray[np.int64],
        planes: Sequence[NDArray[np.float32]],
        *,
        dim: int,
    ) -> None:
        self._store = store
        self._role = role
        self._name = name
        self._dim = dim
        self._keys = keys
        self._order = np.argsort(keys.view(np.uint64))
        self._sorted = keys.view(np.uint64)[self._order]
        self._tables = (name, f"{name}.contexts")
        self._train = [plane[:, :dim] for plane in planes]
        spread = Uniform(-0.5 / dim, 0.5 / dim)
        for table, initializer in zip(self._tables, (spread, Constant(0.0)), strict=True):
            store.define(
                TableSpec(name=table, dim=dim, optimizer=SGD(lr=1.0), initializer=initializer)
            )
            store.watch_changes(table)
        self._old = []
        for table, train in zip(self._tables, self._train, strict=True):
            rows = store.pull(table, keys)
            train[:] = rows
            self._old.append(rows)

    def exchange(self, touched: Sequence[NDArray[np.uint8]]) -> None:
        """Send this worker's deltas for the touched rows, and fetch rows that others changed."""
        sent = {}
        for number, (table, marks) in enumerate(zip(self._tables, touched, strict=True)):
            at = np.flatnonzero(marks)
            marks[at] = 0
            delta = self._train[number][at] - self._old[number][at]
            self._old[number][at] += delta
            sent[table] = (self._keys[at], delta)
        self._store.push_many(sent, unique=True, add=True)
        for number, table in enumerate(self._tables):
            for keys, rows in self._store.take_changes(table):
                self._take_in(number, keys, rows)

    def finish(self, touched: Sequence[NDArray[np.uint8]]) -> None:
        """Exchange the remaining changes; must be called by all workers.

        Afterwards, all workers have the servers' values.
        """
        self.exchange(touched)
        self.wait_for_all("trained")
        for table, train, old in zip(self._tables, self._train, self._old, strict=True):
            rows = self._store.pull(table, self._keys, train=False)
            train[:] = rows
            old[:] = rows

    def wait_for_all(self, what: str) -> None:
        """Block until all workers have called it."""
        self._store.barrier(f"{self._name}/{what}", self._role.worker_num, timeout_s=_BARRIER_S)

    def _take_in(self, number: int, keys: NDArray[np.uint64], rows: NDArray[np.float32]) -> None:
        at = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        is_ours = self._sorted[at] == keys  # other workers have words that this one lacks
        place = self._order[at[is_ours]]
        served = rows[is_ours]
        self._train[number][place] += served - self._old[number][place]
        self._old[number][place] = served
