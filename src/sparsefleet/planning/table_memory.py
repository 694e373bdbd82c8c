"""The size of a row in a server's memory, in its log, and in checkpoints."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import numpy as np

from sparsefleet import optim
from sparsefleet.errors import ConfigError
from sparsefleet.store import LocalStore, RowDtype, TableSpec

__all__ = ["RowBytes", "find_optimizer", "measure_row_bytes"]

_ROWS = (200_000, 250_000, 300_000)
_AT_ONCE = 50_000
_FLOAT_BYTES = 4
_KEY_BYTES = 8
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_OPTIMIZERS: dict[str, type[optim.Optimizer]] = {
    kind.kind: kind
    for kind in (getattr(optim, name) for name in optim.__all__)
    if isinstance(kind, type) and issubclass(kind, optim.Optimizer) and kind.kind
}


def find_optimizer(name: str) -> optim.Optimizer:
    """Return the optimizer with the given name, with its defaults.

    >>> find_optimizer("adagrad").kind
    'adagrad'
    """
    kind = _OPTIMIZERS.get(name.lower().replace("-", "_"))
    if kind is None:
        near = difflib.get_close_matches(name.lower(), _OPTIMIZERS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"optimizer must be one of {', '.join(sorted(_OPTIMIZERS))}, got {name!r}{hint}"
        )
    return kind(lr=0.01)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBytes:
    """The size of one row, in bytes."""

    values: int
    """The row's values, as the table stores them."""
    state: int
    """The optimizer state of the row, including counters."""
    index: float
    """Key, index and allocation: the table's overhead on top of values and state."""
    log: int
    """The entry that a durable server logs for each push of the row: key and gradient."""

    @property
    def memory(self) -> float:
        """Return the bytes in a server's memory."""
        return self.values + self.state + self.index

    @property
    def snapshot(self) -> int:
        """Return the bytes in a snapshot of a durable server."""
        return _KEY_BYTES + self.values + self.state

    @property
    def checkpoint(self) -> int:
        """Return the bytes in a checkpoint, whose values are float32, before compression."""
        return self.log + self.state


def measure_row_bytes(
    dim: int, optimizer: optim.Optimizer, row_dtype: RowDtype = "float32"
) -> RowBytes:
    """Fill a real table and return the bytes per row, as the native core counts them.

    The index grows in steps, so the result is the mean over several table sizes.

    >>> row = measure_row_bytes(16, optim.Adagrad(lr=0.01))
    >>> row.values, row.state
    (64, 64)
    """
    with LocalStore() as store:
        store.define(TableSpec(name="rows", dim=dim, optimizer=optimizer, row_dtype=row_dtype))
        held, filled = [], 0
        for rows in _ROWS:
            for begin in range(filled, rows, _AT_ONCE):
                keys = np.arange(begin, begin + _AT_ONCE).astype(np.uint64) * _MULTIPLIER
                store.pull("rows", keys)
            filled = rows
            stats = store.stats()[0]
            held.append(stats["table.rows.memory_bytes"] / rows)
        state = next(iter(store.rows("rows", chunk_rows=1)))
        floats = state.state.shape[1] * _FLOAT_BYTES
    values = int(stats["table.rows.payload_bytes"]) // filled - _KEY_BYTES - floats
    wide = floats + state.counters.shape[1] * _FLOAT_BYTES
    return RowBytes(
        values=values,
        state=wide,
        index=max(float(np.mean(held)) - values - wide, 0.0),
        log=_KEY_BYTES + dim * _FLOAT_BYTES,
    )
