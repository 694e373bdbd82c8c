"""Loads the tables of a store from a checkpoint, all or nothing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparsefleet.checkpoint import Checkpoint, import_table
from sparsefleet.checkpoint.names import absolute_path
from sparsefleet.errors import CheckpointError, CheckpointMismatchError
from sparsefleet.store.rows import Rows
from sparsefleet.store.store_save import DENSE_OPTIMIZERS, ServerCalls
from sparsefleet.store.table_spec import (
    DenseSpec,
    TableSpec,
    chosen_specs,
    counter_names,
    state_names,
    table_entry,
)

if TYPE_CHECKING:
    from sparsefleet.store.store import Store

__all__ = ["load_parts", "load_tables"]

_TIMEOUT_S = 3600.0


def load_tables(
    store: Store,
    path: str | os.PathLike[str],
    *,
    tables: Collection[str] | None = None,
    dense_names: Mapping[str, Sequence[str]] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> Checkpoint:
    """Replace the contents of tables with those in a checkpoint, on any number of servers.

    tables: sparse and dense tables to load; None means all that the store has defined.
    dense_names: the tensors that each dense table consists of, in order; by default one tensor with
        the name of the table.

    Widths, optimizers and sizes must match. Every server first reads and checks its whole share;
    rows change only after all servers have done so.
    """
    specs = chosen_specs(store.specs, tables, "load")
    checkpoint = Checkpoint.open(absolute_path(path), dict(storage_options or {}) or None)
    sparse = {n: spec for n, spec in specs.items() if isinstance(spec, TableSpec)}
    dense = {n: spec for n, spec in specs.items() if isinstance(spec, DenseSpec)}
    for spec in sparse.values():
        _require_fits(checkpoint, spec)
    sources = [
        _dense_source(checkpoint, spec, (dense_names or {}).get(name, [name]))
        for name, spec in dense.items()
    ]
    checkpoint.verify(deep=False)
    part = {
        "path": checkpoint.path,
        "checkpoint": checkpoint.manifest.token,
        "storage_options": dict(storage_options or {}),
        "tables": {name: list(counter_names(spec)) for name, spec in sparse.items()},
        "dense": sources,
    }
    load_parts(store, [part], f"the load from {checkpoint.path}", timeout_s)
    return checkpoint


def load_parts(
    store: Store, parts: Sequence[Mapping[str, Any]], what: str, timeout_s: float = _TIMEOUT_S
) -> None:
    """Make all servers check, then load, their shares of tables from one or more checkpoints.

    A part has the form that the command `load_begin` takes. Rows change only after all servers have
    checked all parts.
    """
    calls = ServerCalls(store, secrets.token_hex(8))
    try:
        calls.ask_all("load_begin", {"parts": list(parts)})
        calls.wait_for_all("load_wait", timeout_s, f"{what}, checking")
        calls.ask_all("load_apply")
        try:
            calls.wait_for_all("load_wait", timeout_s, what)
        except CheckpointError as error:
            raise type(error)(
                f"{what} failed halfway: files have changed since they were checked. The tables "
                f"are partly loaded; load a complete checkpoint: {error}"
            ) from error
    finally:
        calls.end("load_end")


def import_vectors(
    store: Store,
    table: str,
    path: str | os.PathLike[str],
    *,
    key_column: str | None,
    has_header: bool,
    storage_options: Mapping[str, Any] | None,
) -> int:
    """Set rows of a table to the vectors in a file; see `Store.import_table`.

    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from sparsefleet.store import LocalStore, TableSpec
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "vectors.csv"
    >>> size = file.write_text("key,v0,v1\\n7,0.5,1.5\\n9,2.5,3.5\\n")
    >>> store = LocalStore()
    >>> store.define(TableSpec(name="ads", dim=2))
    >>> store.import_table("ads", file)
    2
    >>> store.pull("ads", np.array([9]), train=False)
    array([[2.5, 3.5]], dtype=float32)
    """
    count = 0
    for chunk in import_table(
        os.fspath(path),
        key_column=key_column,
        has_header=has_header,
        storage_options=storage_options,
    ):
        store.import_rows(table, Rows(*chunk))
        count += len(chunk.keys)
    return count


def _require_fits(checkpoint: Checkpoint, spec: TableSpec) -> None:
    """Raise an error unless width and optimizer match the checkpoint; counters may differ."""
    found = checkpoint.manifest.table(spec.name, checkpoint.path)
    found.require_same(replace(table_entry(spec), counters=found.counters), checkpoint.path)


def _dense_source(checkpoint: Checkpoint, spec: DenseSpec, names: Sequence[str]) -> dict[str, Any]:
    sizes = {entry.name: _num_elements(entry.shape) for entry in checkpoint.manifest.dense}
    missing = [name for name in names if name not in sizes]
    if missing:
        raise CheckpointMismatchError(
            f"{checkpoint.path}: expected tensor '{missing[0]}', found "
            f"{', '.join(sorted(sizes)) or 'none'}"
        )
    found = sum(sizes[name] for name in names)
    if found != spec.size:
        raise CheckpointMismatchError(
            f"{checkpoint.path}: dense table '{spec.name}': expected {spec.size} elements, found "
            f"{found}"
        )
    kind = checkpoint.manifest.notes.get(DENSE_OPTIMIZERS, {}).get(spec.name)
    if kind is None:  # imported values have no optimizer state
        return {"table": spec.name, "values": list(names), "state": []}
    if kind != spec.optimizer.kind:
        raise CheckpointMismatchError(
            f"{checkpoint.path}: dense table '{spec.name}': optimizer: expected "
            f"'{spec.optimizer.kind}', found '{kind}'"
        )
    wide, single = state_names(spec.optimizer)
    state = [[f"{name}/{array}" for name in names] for array in (*wide, *single)]
    missing = [name for array in state for name in array if name not in sizes]
    if missing:
        raise CheckpointMismatchError(
            f"{checkpoint.path}: expected optimizer state '{missing[0]}', found none: {kind} was "
            "saved with different settings"
        )
    return {"table": spec.name, "values": list(names), "state": state}


def _num_elements(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
