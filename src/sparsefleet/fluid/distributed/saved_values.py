"""Convert a job's values to the variables of a single process and back, also in running servers.

In shapes, N is the number of elements of a dense table, S the number of arrays of optimizer state.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import CheckpointError, DeadlineError, NotFoundError, UnknownTableError
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fluid.distributed.update_rules import (
    DenseTable,
    ModelSource,
    ServedTables,
    counter_names,
)
from sparsefleet.fluid.framework import Program, Variable
from sparsefleet.fluid.io.saving import SavedVariable, read_saved
from sparsefleet.fluid.io.variable_file import load_saved_rows
from sparsefleet.store import RemoteStore, RemoteStoreConfig, Store
from sparsefleet.store.arrays import Floats
from sparsefleet.store.row_streams import write_dense_table
from sparsefleet.store.table_folders import TableFolders
from sparsefleet.store.table_spec import state_names

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FolderLoad", "load_tables", "read_unserved", "served_arrays", "wait_until_loaded"]


Arrays = dict[str, NDArray[np.float32]]


def served_arrays(cuts: TableFolders, tables: ServedTables) -> Arrays:
    """Return a dict from variable name to value for the snapshots' dense parameters and optimizer
    state.
    """
    found: Arrays = {}
    for table in tables.dense:
        values, arrays = cuts.dense_table(table.name)
        state = dict(zip(_arrays(table), arrays, strict=True))
        begin = 0
        for update in table.updates:
            shape = update.parameter.shape
            end = begin + math.prod(shape)
            found[update.parameter.name] = values[begin:end].reshape(shape)
            for array, name in update.state.items():
                found[name] = state[array][begin:end].reshape(shape)
            for name, base in update.powers.items():
                steps = state["step"][begin]
                found[name] = np.array([base ** (steps + 1)], np.float32)
            begin = end
    return found


def load_tables(
    store: Store,
    tables: ServedTables,
    program: Program,
    folder: str | os.PathLike[str],
    filename: str | None,
) -> dict[str, float]:
    """Load parameters and their state from a `save_persistables` folder into the servers.

    Returns the step counters. Nothing changes if a file is missing or does not match. The tables
    must be defined. Servers read tables saved as folders; this process reads tables saved as files
    and sends them in chunks.
    """
    counters = counter_names(program, list(tables.rate_of().values()))
    saved = {s.variable.name: s for s in read_saved(folder, _served(program, tables), filename)}
    dense = {table.name: _flat(table, saved) for table in tables.dense}
    rows = {}
    for parameter in program.all_parameters():
        if parameter.is_table:  # including parameters that are not updated
            update = tables.sparse.get(parameter.name)
            kind = "" if update is None else update.optimizer.kind
            rows[parameter.name] = saved[parameter.name].rows, kind
    load_saved_rows(store, rows)
    for name, (values, state) in dense.items():
        write_dense_table(store, name, values, state)
    return {name: float(_array(saved, name).reshape(-1)[0]) for name in counters}


def read_unserved(
    tables: ServedTables,
    program: Program,
    folder: str | os.PathLike[str],
    filename: str | None,
) -> dict[str, NDArray[Any]]:
    """Return a dict from variable name to saved value for variables that only workers hold.

    These are batch norm statistics, AUC counts and dense parameters that are not updated.
    """
    served = {variable.name for variable in _served(program, tables)}
    own = [v for v in program.list_vars() if v.persistable and v.name not in served]
    return {s.variable.name: s.array() for s in read_saved(folder, own, filename)}


def _served(program: Program, tables: ServedTables) -> list[Variable]:
    """Return the variables whose values are on servers, plus the step counters."""
    names = [parameter.name for parameter in program.all_parameters() if parameter.is_table]
    for update in tables.updates:
        names += [update.parameter.name, *update.state.values(), *update.powers]
    names += counter_names(program, list(tables.rate_of().values()))
    return [program.global_block().var(name) for name in dict.fromkeys(names)]


def _flat(table: DenseTable, saved: Mapping[str, SavedVariable]) -> tuple[Floats, Floats]:
    """Return a dense table's values, float32[N], and its optimizer state, float32[S, N]."""
    values = [_array(saved, update.parameter.name).reshape(-1) for update in table.updates]
    state = []
    for array in _arrays(table):
        parts = []
        for update, value in zip(table.updates, values, strict=True):
            if array in update.state:
                parts.append(_array(saved, update.state[array]).reshape(-1))
            else:  # number of completed steps; Fluid only keeps base ** (steps + 1)
                parts.append(np.full(len(value), _steps(update.powers, saved), np.float32))
        state.append(np.concatenate(parts))
    flat = np.concatenate(values)
    return flat, np.stack(state) if state else np.empty((0, len(flat)), np.float32)


def _steps(powers: Mapping[str, float], saved: Mapping[str, SavedVariable]) -> int:
    """Return the number of steps, derived from a saved power, base ** (steps + 1).

    The largest base is used, because its power underflows last.
    """
    name, base = max(powers.items(), key=lambda item: item[1])
    power = float(_array(saved, name).reshape(-1)[0])
    if power <= 0.0:
        return 1 << 20  # so large that the bias correction no longer matters
    return max(round(math.log(power) / math.log(base)) - 1, 0)


def _array(saved: Mapping[str, SavedVariable], name: str) -> Floats:
    return np.asarray(saved[name].array(), np.float32)


def _arrays(table: DenseTable) -> list[str]:
    wide, single = state_names(table.optimizer)
    return [*wide, *single]


_LOOK_S = 0.1
_END_S = 30.0
_CONNECT_S = 600.0

_log = logging.getLogger("sparsefleet.fluid")


class FolderLoad:
    """Loads the folder in a background thread of the first server, once workers have defined the
    tables.

    The workers wait until the server reports the result. Only the first server needs access to the
    folder.
    """

    def __init__(
        self, source: ModelSource, role: RoleInfo, folder: str, filename: str | None
    ) -> None:
        self._source = source
        self._role = role
        self._folder = folder
        self._filename = filename
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load-folder", daemon=True)

    def first_note(self) -> dict[str, bytes]:
        """Return the note, by key, that informs workers that the folder is being loaded."""
        return {_note(self._source.name): f"loading {self._folder}".encode()}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        note = _note(self._source.name)
        others_start = RemoteStoreConfig(connect_timeout_s=_CONNECT_S)
        endpoints = self._role.server_endpoints
        with RemoteStore(endpoints, name="loading-server", config=others_start) as store:
            try:
                if not store.get_note(note).startswith(b"loading "):
                    return  # this server was restarted after the load
                if not self._wait_for_tables(store):
                    return
                counters = load_tables(
                    store, self._source.tables, self._source.program, self._folder, self._filename
                )
                store.put_note(note, f"loaded {json.dumps(counters)}".encode())
            except Exception as error:  # thread boundary: report the error to the workers
                _log.exception("%s could not be loaded", self._folder)
                store.put_note(note, f"failed {error}".encode())

    def _wait_for_tables(self, store: Store) -> bool:
        """Wait until workers have defined all tables.

        Returns False if the server is stopped first.
        """
        tables = self._source.tables
        for name in (*(table.name for table in tables.dense), *tables.sparse):
            while not _is_defined(store, name):
                if self._ended.wait(_LOOK_S):
                    return False
        return True


def wait_until_loaded(store: Store, name: str, wait_s: float) -> dict[str, float] | None:
    """Wait until a server has loaded its folder.

    Returns the step counters, or None if no folder is being loaded.
    """
    end = time.monotonic() + wait_s
    while True:
        try:
            text = store.get_note(_note(name)).decode()
        except NotFoundError:
            return None
        state, _, rest = text.partition(" ")
        if state == "loaded":
            return dict(json.loads(rest))
        if state == "failed":
            raise CheckpointError(f"server 0 could not load the saved folder: {rest}")
        if time.monotonic() > end:
            raise DeadlineError(f"server 0 did not finish loading {rest} within {wait_s:g} s")
        time.sleep(_LOOK_S)


def _is_defined(store: Store, table: str) -> bool:
    try:
        store.info(table)
    except UnknownTableError:
        return False
    return True


def _note(name: str) -> str:
    return f"fluid/{name}/loading"
