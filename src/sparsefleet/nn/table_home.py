"""Where the rows of a module live."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.nn.row_state import SavedRows, put_rows, take_rows
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.store import LocalStore, Store, TableSpec
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.store.store import Unknown


class TableHome:
    """The store of a module's table: none, a private one, or the one it was bound to.

    Copies of a module share it, so that they look up the same rows. Thread-safe.
    """

    def __init__(self, table: str, store: Store | None = None) -> None:
        self.table = table
        self.store = store
        self.spec: TableSpec | None = None
        """What the table was defined as, once it is."""
        self._waiting: SavedRows | None = None  # loaded before there was a table to put them in
        self._lock = threading.Lock()

    @property
    def holds_rows(self) -> bool:
        """Are there rows in this process, and only here?"""
        return self._waiting is not None or (
            self.spec is not None and isinstance(self.store, LocalStore)
        )

    def open(self, describe: Callable[[], TableSpec]) -> None:
        """Defines the table, in a private LocalStore if there is no store yet."""
        with self._lock:
            if self.spec is None:
                if self.store is None:
                    self.store = LocalStore()
                self._settle(self.store, describe())

    def bind(self, store: Store, spec: TableSpec) -> None:
        """From now on the table is ``spec`` in ``store``. Rows kept in this process move along."""
        with self._lock:
            moving = self._waiting
            if moving is None and store is not self.store and self.holds_rows:
                moving = self._saved_rows()
            self._waiting = moving
            self._settle(store, spec)

    def save(self) -> SavedRows | None:
        """The rows as of now; None where they are not in this process, or there are none yet."""
        with self._lock:
            return self._waiting or (self._saved_rows() if self.holds_rows else None)

    def load(self, saved: SavedRows) -> None:
        """Makes the table hold these rows: now, or as soon as it is defined."""
        with self._lock:
            if self.store is None or self.spec is None:
                self._waiting = saved if len(saved.rows.keys) else None
                return
            if isinstance(self.store, LocalStore):  # of servers, others may have rows by now
                for chunk in self.store.rows(self.table):
                    self.store.erase(self.table, chunk.keys)
            put_rows(self.store, self.spec, saved)

    def pull(
        self, keys: Mapping[str, Keys], /, *, train: bool = True, unknown: Unknown = "zeros"
    ) -> Mapping[str, Floats]:
        """`nn.Pull` from the store; REQUIRES that the home is open."""
        assert self.store is not None
        return self.store.pull_many(keys, train=train, unknown=unknown)[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> TableHome:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.store is not None or self._waiting is not None:
            raise ConfigError(
                f"the module of table '{self.table}' cannot be pickled: its rows live in a store, "
                "not in the module. Save model.state_dict() instead, and load it into a new model"
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

    A copy of the module starts without any.
    """

    def __init__(self) -> None:
        self.step: StepRows | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> PendingStep:
        return PendingStep()

    def __reduce__(self) -> tuple[Any, ...]:
        return (PendingStep, ())
