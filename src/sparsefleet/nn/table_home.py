"""The store that holds a module's rows, and conversion of the rows to tensors for state_dict.

In shapes, N is the number of rows, D the row width, S the number of floats of optimizer state per
row, and C the number of counters per row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.store import LocalStore, Rows, Store, TableSpec
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.rows import rows_by_key
from sparsefleet.store.store import Unknown

_FORMAT = 1
_CHUNK_ROWS = 65536


class TableHome:
    """Holds the store of a module's table, which is private until the module is bound to a store.

    Copies of a module share this object, so they look up the same rows. Thread-safe.
    """

    def __init__(self, table: str, store: Store | None = None) -> None:
        self.table = table
        self.store = store
        self.spec: TableSpec | None = None
        """The table's definition, once it is defined."""
        self._waiting: SavedRows | None = None  # loaded before the table was defined
        self._lock = threading.Lock()

    @property
    def holds_rows(self) -> bool:
        """Return whether the table's rows are held by this process alone."""
        return self._waiting is not None or (
            self.spec is not None and isinstance(self.store, LocalStore)
        )

    def open(self, describe: Callable[[], TableSpec]) -> None:
        """Define the table, in a private LocalStore if there is no store yet."""
        with self._lock:
            if self.spec is None:
                if self.store is None:
                    self.store = LocalStore()
                self._settle(self.store, describe())

    def bind(self, store: Store, spec: TableSpec) -> None:
        """Use the table ``spec`` in ``store`` from now on. Rows held in this process move to it."""
        with self._lock:
            moving = self._waiting
            if moving is None and store is not self.store and self.holds_rows:
                moving = self._saved_rows()
            self._waiting = moving
            self._settle(store, spec)

    def save(self) -> SavedRows | None:
        """Return the current rows, or None if there are no rows in this process."""
        with self._lock:
            return self._waiting or (self._saved_rows() if self.holds_rows else None)

    def load(self, saved: SavedRows) -> None:
        """Make the table hold these rows, now or as soon as it is defined."""
        with self._lock:
            if self.store is None or self.spec is None:
                self._waiting = saved if len(saved.rows.keys) else None
                return
            if isinstance(self.store, LocalStore):  # on servers, others may have added rows
                for chunk in self.store.rows(self.table):
                    self.store.erase(self.table, chunk.keys)
            put_rows(self.store, self.spec, saved)

    def pull(
        self, keys: Mapping[str, Keys], /, *, train: bool = True, unknown: Unknown = "zeros"
    ) -> Mapping[str, Floats]:
        """Fetch rows from the store; implements `nn.Pull`. REQUIRES: `open` was called."""
        assert self.store is not None
        return self.store.pull_many(keys, train=train, unknown=unknown)[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> TableHome:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.store is not None or self._waiting is not None:
            raise ConfigError(
                f"the module of table '{self.table}' cannot be pickled: its rows live in a store, "
                "not in the module; save model.state_dict() and load it into a new model"
            )
        return (TableHome, (self.table,))

    def _settle(self, store: Store, spec: TableSpec) -> None:
        store.define(spec)
        if self._waiting is not None:
            put_rows(store, spec, self._waiting)
            self._waiting = None
        self.store = store
        self.spec = spec

    def _saved_rows(self) -> SavedRows:
        assert self.store is not None
        assert self.spec is not None
        return take_rows(self.store, self.spec)


class PendingStep:
    """The lookups of a module since gradients were last applied, in a loop without steps.

    A copy of the module starts without lookups.
    """

    def __init__(self) -> None:
        self.step: StepRows | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> PendingStep:
        return PendingStep()

    def __reduce__(self) -> tuple[Any, ...]:
        return (PendingStep, ())


class SavedRows(NamedTuple):
    """A table's rows, and the kind of optimizer that their state belongs to."""

    rows: Rows
    optimizer: str


def no_rows(spec: TableSpec) -> SavedRows:
    """Return the rows of an empty table."""
    rows = Rows(
        np.empty(0, np.uint64),
        np.empty((0, spec.dim), np.float32),
        np.empty((0, 0), np.float32),
        np.empty((0, 0), np.uint32),
    )
    return SavedRows(rows, spec.optimizer.kind)


def take_rows(store: Store, spec: TableSpec) -> SavedRows:
    """Return all current rows of the table, sorted by key."""
    chunks = list(store.rows(spec.name))
    if not chunks:
        return no_rows(spec)
    return SavedRows(rows_by_key(chunks), spec.optimizer.kind)


def put_rows(store: Store, spec: TableSpec, saved: SavedRows) -> None:
    """Write the rows into the table, replacing rows with the same keys.

    Optimizer state is kept if the table has the same optimizer; otherwise it is reset.
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
    """Return rows as a dict of tensors and strings that `torch.load` accepts with weights_only."""
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
    """Return a placeholder for rows kept elsewhere: "servers", or "shared" with another module."""
    return {"format": _FORMAT, "rows": where}


def from_state(table: str, dim: int, state: Any) -> SavedRows | None:
    """Return the rows in a state, or None if the state says that they are kept elsewhere."""
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT:
        found = state.get("format") if isinstance(state, Mapping) else type(state).__name__
        raise ConfigError(
            f"table '{table}': the state to load has format {found!r}, expected {_FORMAT}; it was "
            "written by a different version of sparsefleet"
        )
    if state["rows"] != "here":
        return None
    width = state["values"].shape[1]
    if width != dim:
        raise ShapeError(
            f"table '{table}': rows to load have width {width}, expected {dim}; create the module "
            f"with dim={width}"
        )
    rows = Rows(
        state["keys"].numpy().view(np.uint64),
        state["values"].numpy(),
        state["state"].numpy(),
        state["counters"].numpy().astype(np.uint32),
    )
    return SavedRows(rows, state["optimizer"])
