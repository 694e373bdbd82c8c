"""Rows of workers that train alone for some steps, averaged when they meet.

Letters: N keys, D row width.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sparsefleet.modes.gathered_rows import GatheredRows, RowGradients
from sparsefleet.store import LocalStore
from sparsefleet.store.arrays import Floats, Keys


class RowAveraging:
    """Remembers the rows that were looked up since the last meeting as they were at it.

    A meeting moves every row that any worker changed by the mean of what the workers did to it:
    as LocalSGD does with dense parameters. The state of optimizers stays with its worker. Not
    thread-safe.
    """

    def __init__(self, store: LocalStore, gathered: GatheredRows) -> None:
        self._store = store
        self._gathered = gathered
        self._before: dict[str, list[tuple[Keys, Floats]]] = {}
        self._seen: dict[str, set[int]] = {}

    def pulled(self, keys: Mapping[str, Keys], rows: Mapping[str, Floats]) -> None:
        """These rows (float32[N, D]) may be trained from now on; each key of a table once."""
        for table, wanted in keys.items():
            seen = self._seen.setdefault(table, set())
            asked = wanted.tolist()
            new = np.array([key not in seen for key in asked], bool)
            if new.any():
                seen.update(asked)
                before = (wanted[new], rows[table][new])
                self._before.setdefault(table, []).append(before)

    def meet(self, num_present: int) -> None:
        """All workers call it; so many of them have trained since the last time."""
        moved: RowGradients = {}
        for table, parts in self._before.items():
            keys = np.concatenate([keys for keys, _ in parts])
            before = np.concatenate([rows for _, rows in parts])
            now = self._store.pull(table, keys)
            changed = (before != now).any(axis=1)
            moved[table] = (keys[changed], (before - now)[changed])
            self._write(table, keys[changed], before[changed])
        for table, (keys, sums) in self._gathered.sum(moved).items():
            common = self._store.pull(table, keys)  # equal everywhere, also where just born
            self._write(table, keys, common - sums / np.float32(num_present))
        self.forget()

    def forget(self) -> None:
        """All workers have the same rows now."""
        self._before.clear()
        self._seen.clear()

    def _write(self, table: str, keys: Keys, values: Floats) -> None:
        """Exactly these values; the state of their optimizer stays."""
        self._store.push(table, keys, -self._store.pull(table, keys), unique=True, add=True)
        self._store.push(table, keys, values, unique=True, add=True)
