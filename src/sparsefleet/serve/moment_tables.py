"""The tables of a model at one moment, together with its dense parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparsefleet.export.row_source import RowSource, Tables
from sparsefleet.updates import DenseValues

__all__ = ["MomentTables", "dense_of"]


class MomentTables(Mapping[str, RowSource]):
    """A `Tables` that also has the dense parameters to compute with; None: those of the export."""

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
    """The dense parameters of the same moment; None: those of the export.

    Who puts other tables in the place of these hands them on, in a `MomentTables`.
    """
    return tables.dense if isinstance(tables, MomentTables) else None
