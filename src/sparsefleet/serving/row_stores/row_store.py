"""One interface to a served model's rows, wherever they are stored."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet.serving.export.export_directory import read_manifest
from sparsefleet.serving.export.keyed_rows import RowSource, Tables
from sparsefleet.serving.export.manifest import ExportManifest
from sparsefleet.serving.export.row_file import open_tables
from sparsefleet.serving.updates import DenseValues

__all__ = ["FileRows", "RowSource", "RowStore", "Tables", "TablesSnapshot", "dense_of"]


class RowStore(Protocol):
    """The rows of one version of a model. Thread-safe.

    Every call returns within the store's own deadline. If rows are unavailable, calls raise
    StoreUnavailableError, which says what to do; the store recovers on its own.
    """

    @property
    def version(self) -> str:
        """Return the `ExportManifest.digest` of the export that the rows belong to.

        The digest never changes; each version's rows have their own RowStore.
        """

    def tables(self, ids: Mapping[str, NDArray[np.int64]] | None = None) -> Tables:
        """Return a snapshot of the tables.

        A prediction calls this method once and looks up rows only in the result, so it never mixes
        rows from before and after an update.

        ids: the ids about to be looked up, by table, as far as they are known; a remote store
            fetches the rows of all these ids at once. Other ids can still be looked up.
        """

    def freshness(self) -> float | None:
        """Return when the newest active update was made, in seconds since 1970.

        None means that there have been no updates since the export.
        """

    def check(self) -> None:
        """Raise StoreUnavailableError if rows are currently unavailable."""

    def close(self) -> None:
        """Free all resources. No other call may be in progress or follow."""


class FileRows:
    """The rows in the files of an export, mapped into memory.

    manifest: the manifest of the export, if it has already been read.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, manifest: ExportManifest | None = None
    ) -> None:
        manifest = read_manifest(directory) if manifest is None else manifest
        self.version = manifest.digest
        self._tables = open_tables(Path(directory), manifest.tables)

    def tables(self, ids: Mapping[str, NDArray[np.int64]] | None = None) -> Tables:
        del ids
        return self._tables

    def freshness(self) -> float | None:
        return None

    def check(self) -> None:
        """Do nothing, since mapped files are always available."""

    def close(self) -> None:
        """Do nothing, since the mapping is freed after the last prediction that uses it."""


class TablesSnapshot(Mapping[str, RowSource]):
    """A `Tables` that also holds the dense parameters to use, or None to use the export's."""

    def __init__(self, tables: Mapping[str, RowSource], dense: DenseValues | None) -> None:
        self._tables = tables
        self.dense = dense

    def __getitem__(self, name: str) -> RowSource:
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


def dense_of(tables: Tables) -> DenseValues | None:
    """Return the dense parameters from the same snapshot, or None to use the export's.

    Code that wraps these tables must pass the dense parameters on in a new `TablesSnapshot`.
    """
    return tables.dense if isinstance(tables, TablesSnapshot) else None
