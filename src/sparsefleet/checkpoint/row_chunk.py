"""Rows of a table as columns.

Letters: N rows, D row width, S floats of optimizer state a row, C counters a row.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint.entries import TableEntry
from sparsefleet.errors import ConfigError

__all__ = ["COLUMNS", "RowArrays", "RowChunk", "RowLayout"]

COLUMNS = ("values", "state", "counters")
"""What rows have beside their keys."""


class RowArrays(Protocol):
    """What rows are written from; the store's `Rows` is one."""

    @property
    def keys(self) -> NDArray[np.uint64]: ...
    @property
    def values(self) -> NDArray[np.float32]: ...
    @property
    def state(self) -> NDArray[np.float32]: ...
    @property
    def counters(self) -> NDArray[np.uint32]: ...


class RowChunk(NamedTuple):
    """Rows as columns."""

    keys: NDArray[np.uint64]
    """uint64[N]"""
    values: NDArray[np.float32]
    """float32[N, D]"""
    state: NDArray[np.float32]
    """float32[N, S]; float32[N, 0] where it was not asked for"""
    counters: NDArray[np.uint32]
    """uint32[N, C]; uint32[N, 0] where they were not asked for"""

    def only(self, where: NDArray[np.bool_]) -> RowChunk:
        """The rows for which `where`, bool[N], is true."""
        if where.all():
            return self
        return RowChunk(
            self.keys[where], self.values[where], self.state[where], self.counters[where]
        )


class RowLayout(NamedTuple):
    """Widths of the columns of a table."""

    table: str
    dim: int
    state: int = 0
    counters: int = 0

    @classmethod
    def of(cls, table: TableEntry) -> RowLayout:
        return cls(table.name, table.dim, table.state_width, len(table.counters))

    def check(self, rows: RowArrays) -> None:
        """Raises ConfigError unless the arrays have these widths and the right types."""
        count = len(rows.keys)
        for name, array, shape, dtype in (
            ("keys", rows.keys, (count,), "uint64"),
            ("values", rows.values, (count, self.dim), "float32"),
            ("state", rows.state, (count, self.state), "float32"),
            ("counters", rows.counters, (count, self.counters), "uint32"),
        ):
            if array.shape != shape or array.dtype != dtype:
                raise ConfigError(
                    f"table {self.table!r}: {name} must be {dtype}{list(shape)}, "
                    f"got {array.dtype}{list(array.shape)}"
                )
