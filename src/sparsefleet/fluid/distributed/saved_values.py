"""Values of a job as the variables that one process would have, and back.

Letters: N elements of a dense table, S arrays of optimizer state.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.fluid.distributed.rate_program import counter_names
from sparsefleet.fluid.distributed.served_tables import DenseTable, ServedTables
from sparsefleet.fluid.framework import Program, Variable
from sparsefleet.fluid.saving import SavedVariable, read_saved
from sparsefleet.fluid.sparse_parameter import replace_rows, whole_rows
from sparsefleet.store import Store
from sparsefleet.store.arrays import Floats
from sparsefleet.store.dense_state import read_dense_tables, write_dense_table
from sparsefleet.store.table_entry import state_names

__all__ = ["accumulators_of", "load_tables", "read_unserved"]

Arrays = dict[str, NDArray[np.float32]]


def accumulators_of(store: Store, tables: ServedTables) -> Arrays:
    """Variable -> value of what updates keep beside parameters."""
    found: Arrays = {}
    with_state = [table for table in tables.dense if any(state_names(table.optimizer))]
    read = read_dense_tables(store, [table.name for table in with_state])
    for table in with_state:
        state = dict(zip(_arrays(table), read[table.name].state, strict=True))
        begin = 0
        for update in table.updates:
            shape = update.parameter.shape
            end = begin + math.prod(shape)
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
    """Servers take over what a folder of `save_persistables` has of parameters and their state.

    Returns the counters of steps. Nothing changes if a file is missing or does not fit. The tables
    must be defined.
    """
    counters = counter_names(program, list(tables.rate_of().values()))
    saved = {s.variable.name: s for s in read_saved(folder, _served(program, tables), filename)}
    for parameter in program.all_parameters():
        if parameter.is_table:  # those that are not updated, too
            update = tables.sparse.get(parameter.name)
            kind = "" if update is None else update.optimizer.kind
            _load_rows(store, saved[parameter.name], kind)
    for table in tables.dense:
        values, state = _flat(table, saved)
        write_dense_table(store, table.name, values, state)
    return {name: float(_array(saved, name).reshape(-1)[0]) for name in counters}


def read_unserved(
    tables: ServedTables,
    program: Program,
    folder: str | os.PathLike[str],
    filename: str | None,
) -> dict[str, NDArray[Any]]:
    """Variable -> what such a folder has of that which each worker keeps for itself.

    These are statistics of batch norm, counts of an AUC, dense parameters that are not updated.
    """
    served = {variable.name for variable in _served(program, tables)}
    own = [v for v in program.list_vars() if v.persistable and v.name not in served]
    return {s.variable.name: _whole(s) for s in read_saved(folder, own, filename)}


def _served(program: Program, tables: ServedTables) -> list[Variable]:
    """The variables whose values servers have, and the counters of steps."""
    names = [parameter.name for parameter in program.all_parameters() if parameter.is_table]
    for update in tables.updates:
        names += [update.parameter.name, *update.state.values(), *update.powers]
    names += counter_names(program, list(tables.rate_of().values()))
    return [program.global_block().var(name) for name in dict.fromkeys(names)]


def _load_rows(store: Store, saved: SavedVariable, kind: str) -> None:
    name = saved.variable.name
    if saved.whole is not None:
        replace_rows(store, name, whole_rows(np.ascontiguousarray(saved.whole, np.float32)))
        return
    rows = saved.rows()
    if saved.optimizer != kind:
        rows = rows._replace(state=rows.state[:, :0])
    replace_rows(store, name, rows)


def _flat(table: DenseTable, saved: Mapping[str, SavedVariable]) -> tuple[Floats, Floats]:
    """Values float32[N] and state float32[S, N] of a dense table."""
    values = [_array(saved, update.parameter.name).reshape(-1) for update in table.updates]
    state = []
    for array in _arrays(table):
        parts = []
        for update, value in zip(table.updates, values, strict=True):
            if array in update.state:
                parts.append(_array(saved, update.state[array]).reshape(-1))
            else:  # steps done, of which Fluid keeps the power only
                parts.append(np.full(len(value), _steps(update.powers, saved), np.float32))
        state.append(np.concatenate(parts))
    flat = np.concatenate(values)
    return flat, np.stack(state) if state else np.empty((0, len(flat)), np.float32)


def _steps(powers: Mapping[str, float], saved: Mapping[str, SavedVariable]) -> int:
    """From base ** (steps + 1): the largest base tells longest before it is lost to rounding."""
    name, base = max(powers.items(), key=lambda item: item[1])
    power = float(_array(saved, name).reshape(-1)[0])
    if power <= 0.0:
        return 1 << 20  # so many that the correction by steps has long ended
    return max(round(math.log(power) / math.log(base)) - 1, 0)


def _array(saved: Mapping[str, SavedVariable], name: str) -> Floats:
    return np.asarray(_whole(saved[name]), np.float32)


def _whole(saved: SavedVariable) -> NDArray[Any]:
    found = saved.whole
    return saved.dense(saved.variable.shape) if found is None else found


def _arrays(table: DenseTable) -> list[str]:
    wide, single = state_names(table.optimizer)
    return [*wide, *single]
