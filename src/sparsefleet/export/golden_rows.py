"""Rows for golden examples: those that are exported, before their format makes them coarser.

Training may go on while a model is exported. So golden predictions are computed from the rows
that pass by on their way into the files, not from what the store holds a moment later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from sparsefleet.export.row_file import RowFile
from sparsefleet.nn import Pull
from sparsefleet.store import Rows, Store
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.store import Unknown

__all__ = ["GoldenRows"]


class GoldenRows:
    """Notes which keys a first run looks up, keeps their rows, and serves a second run."""

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self._stores = stores
        self._wanted: dict[str, Keys] = {}
        self._kept: dict[str, list[tuple[Keys, Floats]]] = {}

    def pull_and_note(
        self, keys: Mapping[str, Keys], /, *, train: bool = True, unknown: Unknown = "zeros"
    ) -> dict[str, Floats]:
        """`nn.Pull` from the stores."""
        del train
        found = {}
        for table, wanted in keys.items():
            before = self._wanted.get(table, wanted)
            self._wanted[table] = np.union1d(before, wanted)
            found[table] = self._stores[table].pull(table, wanted, train=False, unknown=unknown)
        return found

    def passing(self, table: str, chunks: Iterable[Rows]) -> Iterator[Rows]:
        """The chunks as they are, while rows of noted keys are kept."""
        wanted = self._wanted.get(table, np.empty(0, np.uint64))
        kept = self._kept.setdefault(table, [])
        for chunk in chunks:
            here = np.isin(chunk.keys, wanted)
            if here.any():
                kept.append((chunk.keys[here], chunk.values[here]))
            yield chunk

    def pull_from(self, files: Mapping[str, RowFile]) -> Pull:
        """`nn.Pull` of rows as kept; what was not kept, as it is in the files."""

        def pull(
            keys: Mapping[str, Keys], /, *, train: bool = True, unknown: Unknown = "zeros"
        ) -> dict[str, Floats]:
            del train
            return {
                table: self._as_kept(table, wanted, files[table].rows_of(wanted, unknown))
                if table in files
                else self._stores[table].pull(table, wanted, train=False, unknown=unknown)
                for table, wanted in keys.items()
            }

        return pull

    def _as_kept(self, table: str, keys: Keys, rows: Floats) -> Floats:
        order = np.argsort(keys)
        for kept_keys, values in self._kept.get(table, []):
            places = np.searchsorted(keys, kept_keys, sorter=order)
            places = order[np.minimum(places, len(keys) - 1)]
            same = keys[places] == kept_keys
            rows[places[same]] = values[same]
        return rows
