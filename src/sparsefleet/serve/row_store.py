"""Where the rows of a model that is served are: one interface, whatever holds them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet.export.manifest import Manifest
from sparsefleet.export.opened_export import read_manifest
from sparsefleet.export.row_file import open_tables
from sparsefleet.export.row_source import RowSource, Tables

__all__ = ["FileRows", "RowSource", "RowStore", "Tables"]


class RowStore(Protocol):
    """The rows of one version of a model. Thread-safe.

    Every call ends within a deadline of the store's own. Rows that cannot be had raise
    StoreUnavailableError, which says what to do; the store recovers by itself.
    """

    @property
    def version(self) -> str:
        """`Manifest.digest` of the export whose rows these are. It never changes: rows of another
        version are in another RowStore."""

    def tables(self, ids: Mapping[str, NDArray[np.int64]] | None = None) -> Tables:
        """The tables as they are at one moment. A prediction asks once and looks up in nothing
        else, so that it never sees one row before an update and another after it.

        ids: by table, what is about to be looked up, as far as it is known: a store behind a
            network fetches it all at once. Other ids can still be looked up.
        """

    def freshness(self) -> float | None:
        """When the newest update that is in force was made, seconds since 1970; None: no updates
        came since the export."""

    def check(self) -> None:
        """Raises StoreUnavailableError if rows cannot be had now."""

    def close(self) -> None:
        """Frees what it holds. No call may be under way or follow."""


class FileRows:
    """The rows in the files of an export, mapped into memory.

    manifest: of the export, if it has been read already.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, manifest: Manifest | None = None
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
        """Mapped files are always there."""

    def close(self) -> None:
        """The mapping goes with the last prediction that reads from it."""
