"""Rows of a table as columns, and the shard that holds each row.

In shapes, N is the number of rows, D the row width, S the number of floats of optimizer state per
row, C the number of counters per row.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint.manifest import TableEntry
from sparsefleet.errors import ConfigError

__all__ = ["COLUMNS", "RowArrays", "RowChunk", "RowLayout", "shard_of"]

COLUMNS = ("values", "state", "counters")
"""The columns of a row other than the key."""


class RowArrays(Protocol):
    """Rows to be written, such as a store's `Rows`."""

    @property
    def keys(self) -> NDArray[np.uint64]: ...
    @property
    def values(self) -> NDArray[np.float32]: ...
    @property
    def state(self) -> NDArray[np.float32]: ...
    @property
    def counters(self) -> NDArray[np.uint32]: ...


class RowChunk(NamedTuple):
    """A chunk of rows, as columns."""

    keys: NDArray[np.uint64]
    """uint64[N]"""
    values: NDArray[np.float32]
    """float32[N, D]"""
    state: NDArray[np.float32]
    """float32[N, S]; float32[N, 0] if not requested"""
    counters: NDArray[np.uint32]
    """uint32[N, C]; uint32[N, 0] if not requested"""

    def only(self, where: NDArray[np.bool_]) -> RowChunk:
        """Return the rows where the mask `where`, bool[N], is true."""
        if where.all():
            return self
        return RowChunk(
            self.keys[where], self.values[where], self.state[where], self.counters[where]
        )


class RowLayout(NamedTuple):
    """The widths of a table's columns: values, optimizer state and counters."""

    table: str
    dim: int
    state: int = 0
    counters: int = 0

    @classmethod
    def of(cls, table: TableEntry) -> RowLayout:
        return cls(table.name, table.dim, table.state_width, len(table.counters))

    def check(self, rows: RowArrays) -> None:
        """Raise ConfigError unless the arrays have these widths and the right types."""
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


def shard_of(keys: NDArray[np.uint64], num_shards: int) -> NDArray[np.uint32]:
    """Return the shard of each key, uint64[N] -> uint32[N], by the same formula as the core's
    `OwnerOf`.

    The formula is part of the file format (docs/checkpoint_format.md), so it must not change.

    >>> shard_of(np.array([7, 8], np.uint64), 1)
    array([0, 0], dtype=uint32)
    """
    if num_shards <= 1:
        return np.zeros(len(keys), np.uint32)
    x = keys ^ np.uint64(0x5350464C45455421)
    x += np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    shards: NDArray[np.uint64] = ((x >> np.uint64(32)) * np.uint64(num_shards)) >> np.uint64(32)
    return shards.astype(np.uint32)
