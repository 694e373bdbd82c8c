"""A table of the export under test, with updates laid over it where there are some.

Letters: U distinct keys, N rows, D row width.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import StoreUnavailableError
from sparsefleet.export.keyed_rows import KeyedRows
from sparsefleet.export.manifest import Manifest
from sparsefleet.export.row_file import RowFile
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.updates import ModelMoment, UpdateReader, open_log
from sparsefleet.updates.overlay import TableOverlay

__all__ = ["ModelTable", "UpdatedTable", "moment_of", "with_updates"]


class UpdatedTable(KeyedRows):
    """Rows of an export as updates have left them."""

    def __init__(self, file: RowFile, overlay: TableOverlay) -> None:
        super().__init__(file.entry, file.initial)
        self._file = file
        self._overlay = overlay
        changes = overlay.changes()
        stay = file.keys[~np.isin(file.keys, changes.removed)]
        self.keys: Keys = np.union1d(stay, changes.keys)
        """All keys, rising: uint64[N]."""

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        """As `KeyedRows`: what changed, else what the file has."""
        rows, known = self._file.find(keys)
        self._overlay.find(keys, rows, known)
        return rows, known


ModelTable = RowFile | UpdatedTable


def moment_of(updates: str | os.PathLike[str], manifest: Manifest) -> ModelMoment | None:
    """The newest moment that the updates of an export lead to; None: there are none yet.

    Raises StoreUnavailableError if they cannot be read, or one is missing or damaged.
    """
    log = open_log(updates, manifest.digest)
    try:
        reader = UpdateReader(log, manifest.digest, manifest.tables)
        reader.catch_up()
        if reader.problem is not None:
            raise StoreUnavailableError(f"updates of {os.fspath(updates)}: {reader.problem}")
        return reader.moment
    finally:
        log.close()


def with_updates(
    tables: Mapping[str, RowFile], moment: ModelMoment | None
) -> dict[str, ModelTable]:
    """The tables of an export at that moment."""
    found: dict[str, ModelTable] = {}
    for name, file in tables.items():
        overlay = TableOverlay() if moment is None else moment.rows.table(name)
        found[name] = UpdatedTable(file, overlay) if len(overlay) else file
    return found
