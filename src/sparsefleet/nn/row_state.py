"""Rows of a table as tensors, for state_dict, and from store to store.

Letters: N rows, D row width, S floats of optimizer state a row, C counters a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.store import Rows, Store, TableSpec

_FORMAT = 1
_CHUNK_ROWS = 65536


class SavedRows(NamedTuple):
    """Rows and the kind of optimizer that their state belongs to."""

    rows: Rows
    optimizer: str


def no_rows(spec: TableSpec) -> SavedRows:
    """The rows of a table that has none."""
    rows = Rows(
        np.empty(0, np.uint64),
        np.empty((0, spec.dim), np.float32),
        np.empty((0, 0), np.float32),
        np.empty((0, 0), np.uint32),
    )
    return SavedRows(rows, spec.optimizer.kind)


def take_rows(store: Store, spec: TableSpec) -> SavedRows:
    """All rows of the table as of now."""
    chunks = list(store.rows(spec.name))
    if not chunks:
        return no_rows(spec)
    rows = Rows(*(np.concatenate(column) for column in zip(*chunks, strict=True)))
    return SavedRows(rows, spec.optimizer.kind)


def put_rows(store: Store, spec: TableSpec, saved: SavedRows) -> None:
    """Writes the rows into the table, over those of the same keys.

    Optimizer state goes along if the table has the same optimizer, else it begins anew.
    """
    keys, values, state, counters = saved.rows
    info = store.info(spec.name)
    if saved.optimizer != spec.optimizer.kind or state.shape[1] != info.state_dim:
        state = state[:, :0]
    if counters.shape[1] != info.counter_dim:
        counters = counters[:, :0]
    for begin in range(0, len(keys), _CHUNK_ROWS):
        part = slice(begin, begin + _CHUNK_ROWS)
        store.import_rows(spec.name, Rows(keys[part], values[part], state[part], counters[part]))


def to_state(saved: SavedRows) -> dict[str, Any]:
    """Rows as a dict of tensors and text, which `torch.load` takes with weights_only=True."""
    keys, values, state, counters = saved.rows
    return {
        "format": _FORMAT,
        "rows": "here",
        "optimizer": saved.optimizer,
        "keys": torch.from_numpy(keys.view(np.int64)),
        "values": torch.from_numpy(values),
        "state": torch.from_numpy(state),
        "counters": torch.from_numpy(counters.astype(np.int64)),
    }


def state_without_rows(where: str) -> dict[str, Any]:
    """What stands for rows that are elsewhere: "servers", or "shared" with another module."""
    return {"format": _FORMAT, "rows": where}


def from_state(table: str, dim: int, state: Any) -> SavedRows | None:
    """The rows of a state; None where it says that they are elsewhere."""
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT:
        found = state.get("format") if isinstance(state, Mapping) else type(state).__name__
        raise ConfigError(
            f"table '{table}': the state to load has format {found!r}, wanted {_FORMAT}: "
            "it was not written by this version of sparsefleet"
        )
    if state["rows"] != "here":
        return None
    width = state["values"].shape[1]
    if width != dim:
        raise ShapeError(f"table '{table}': rows to load have width {width}, wanted {dim}")
    rows = Rows(
        state["keys"].numpy().view(np.uint64),
        state["values"].numpy(),
        state["state"].numpy(),
        state["counters"].numpy().astype(np.uint32),
    )
    return SavedRows(rows, state["optimizer"])
