"""The servers of a training job that runs: their rows at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sparsefleet.errors import UnknownTableError
from sparsefleet.store import RemoteStore, RemoteStoreConfig
from sparsefleet.verify.side import FoundRows, Role, Side, TableFacts

__all__ = ["ServersSide"]


class ServersSide(Side):
    """Tables on servers; they know dense parameters only as one flat array, without names.

    tables: names of those of the export.
    """

    role: Role = "training"

    def __init__(
        self, name: str, endpoints: Sequence[str], tables: Sequence[str], *, timeout_s: float
    ) -> None:
        super().__init__(name)
        config = RemoteStoreConfig(timeout_s=timeout_s, connect_timeout_s=timeout_s)
        self._store = RemoteStore(endpoints, name="verify", config=config)
        self._names = tables

    def tables(self) -> Mapping[str, TableFacts]:
        found = {}
        for name in self._names:
            try:
                info = self._store.info(name)
            except UnknownTableError:
                continue
            found[name] = TableFacts(info.dim, info.size)
        return found

    def stream(self, table: str) -> Iterator[FoundRows]:
        for rows in self._store.rows(table):
            yield FoundRows(rows.keys, np.ones(len(rows.keys), np.bool_), rows.values)

    def close(self) -> None:
        self._store.close()
