"""Rows of an export with the updates that a trainer publishes, as they come.

Letters: U distinct keys, D row width.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError, SparseFleetError, StoreUnavailableError
from sparsefleet.export.keyed_rows import KeyedRows
from sparsefleet.export.manifest import Manifest
from sparsefleet.export.row_source import RowSource, Tables
from sparsefleet.serve.moment_tables import MomentTables
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.updates import DenseValues, ModelMoment, UpdateReader, open_log
from sparsefleet.updates.overlay import TableOverlay

if TYPE_CHECKING:
    from sparsefleet.serve.row_store import RowStore

__all__ = ["UpdatedRows"]

_log = logging.getLogger("sparsefleet.serve")

_POLL_S = 0.25
_MAX_WAIT_S = 5.0  # between looks at a log that cannot be reached
_END_S = 30.0

Ids = Mapping[str, NDArray[np.int64]]


class UpdatedRows:
    """A `RowStore`: another one, the base, with updates laid over it.

    A thread looks for updates; each is in force for all tables and the dense parameters at once.
    What cannot be applied, because one is missing, damaged or of another model, is told in
    `problem` and the log; the last good moment is served until a whole update comes.

    base: rows of the export; it is closed with this store.
    updates: the directory, or the address of Redis, that a trainer publishes to.

    Memory: the rows that changed since the export.
    """

    def __init__(
        self, base: RowStore, updates: str | os.PathLike[str], *, manifest: Manifest
    ) -> None:
        if base.version != manifest.digest:
            raise ConfigError(
                f"the rows are of the export {base.version}, the manifest of {manifest.digest}"
            )
        self._base = base
        self._log = open_log(updates, manifest.digest)
        self._reader = UpdateReader(self._log, manifest.digest, manifest.tables)
        self._moment: ModelMoment | None = None
        self._listeners: list[weakref.WeakMethod[Callable[[DenseValues], None]]] = []
        self._lock = threading.Lock()
        self._problem: str | None = None
        self._ending = threading.Event()
        self._look()  # so that a service which starts does not begin with old rows
        self._thread = threading.Thread(target=self._run, name="sparsefleet-updates", daemon=True)
        self._thread.start()

    @property
    def version(self) -> str:
        return self._base.version

    @property
    def sequence(self) -> int:
        """The number of the newest update in force; 0 is the export itself."""
        moment = self._moment
        return 0 if moment is None else moment.sequence

    @property
    def problem(self) -> str | None:
        """Why newer updates are not in force; None: all is well."""
        return self._problem

    @property
    def memory_bytes(self) -> int:
        """Of the rows that changed since the export."""
        moment = self._moment
        return 0 if moment is None else moment.rows.memory_bytes

    def tables(self, ids: Ids | None = None) -> Tables:
        moment = self._moment
        base = self._base.tables(ids)
        if moment is None:
            return base
        tables = {name: _laid_over(table, moment.rows.table(name)) for name, table in base.items()}
        return MomentTables(tables, moment.dense)

    def freshness(self) -> float | None:
        moment = self._moment
        return None if moment is None else moment.made

    def check(self) -> None:
        """As that of the base: old rows can be served, and freshness tells how old they are."""
        self._base.check()

    def prepare_with(self, listener: Callable[[DenseValues], None]) -> None:
        """Calls this method of an engine before an update is in force, for as long as it lives."""
        with self._lock:
            self._listeners.append(weakref.WeakMethod(listener))
        moment = self._moment
        if moment is not None:
            listener(moment.dense)

    def close(self) -> None:
        self._ending.set()
        self._thread.join(_END_S)
        self._log.close()
        self._base.close()

    def _run(self) -> None:
        wait_s = _POLL_S
        while not self._ending.wait(wait_s):
            try:
                is_reached = self._look()
            except Exception as error:  # the thread's edge: it must not end while rows are served
                self._tell(f"{type(error).__name__}: {error}")
                is_reached = False
            wait_s = _POLL_S if is_reached else min(2 * wait_s, _MAX_WAIT_S)

    def _look(self) -> bool:
        """Takes up what is new; whether the log could be reached."""
        try:
            self._reader.catch_up(self._prepare)
        except StoreUnavailableError as error:
            self._tell(str(error))
            return False
        except SparseFleetError as error:  # updates of another model: they are not applied
            self._tell(str(error))
            return True
        self._moment = self._reader.moment
        self._tell(self._reader.problem)
        return True

    def _prepare(self, moment: ModelMoment) -> None:
        with self._lock:
            self._listeners = [each for each in self._listeners if each() is not None]
            calls = [each() for each in self._listeners]
        for call in calls:
            if call is not None:
                call(moment.dense)

    def _tell(self, problem: str | None) -> None:
        if problem != self._problem:
            self._problem = problem
            if problem is None:
                _log.info("updates from %s are applied again", self._log.where)
            else:
                _log.warning("updates are not applied: %s", problem)


class _UpdatedTable(KeyedRows):
    """A table with changes laid over it."""

    def __init__(self, base: KeyedRows, overlay: TableOverlay) -> None:
        super().__init__(base.entry, base.initial)
        self._base = base
        self._overlay = overlay

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        rows = np.zeros((len(keys), self.entry.dim), np.float32)
        known = np.zeros(len(keys), np.bool_)
        changed = self._overlay.find(keys, rows, known)
        if not changed.all():
            asked = ~changed
            rows[asked], known[asked] = self._base.find(keys[asked])
        return rows, known


def _laid_over(table: RowSource, overlay: TableOverlay) -> RowSource:
    if not isinstance(table, KeyedRows):
        raise ConfigError(
            f"updates cannot be laid over a {type(table).__name__}: it does not find rows by key"
        )
    return _UpdatedTable(table, overlay) if len(overlay) else table
