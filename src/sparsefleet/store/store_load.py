"""Tables of a store filled from a checkpoint, all or nothing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.errors import CheckpointError, CheckpointMismatchError, ConfigError
from sparsefleet.store.checkpoint_path import absolute_path
from sparsefleet.store.server_calls import ServerCalls
from sparsefleet.store.store_save import DENSE_OPTIMIZERS
from sparsefleet.store.table_entry import counter_names, state_names, table_entry
from sparsefleet.store.table_spec import DenseSpec, TableSpec

if TYPE_CHECKING:
    from sparsefleet.store.store import Store

__all__ = ["load_tables"]

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
    """Replaces what the tables hold by what the checkpoint does, at any number of servers.

    tables: those to be loaded, sparse and dense; None is all that the store has defined.
    dense_names: dense table -> the tensors that it is made of, in order; a table not named is one
        tensor of its own name.

    Tables must have the width, the optimizer and the size of those saved. Every server first reads
    and checks all that it will read; only when all have, rows change.
    """
    specs = {n: s for n, s in store.specs.items() if tables is None or n in tables}
    if not specs:
        raise ConfigError("no table is defined, so there is nothing to load: define() first")
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
    calls = ServerCalls(store, secrets.token_hex(8))
    what = f"the load of {checkpoint.path}"
    try:
        calls.ask_all(
            "load_begin",
            {
                "path": checkpoint.path,
                "storage_options": dict(storage_options or {}),
                "tables": {name: list(counter_names(spec)) for name, spec in sparse.items()},
                "dense": sources,
            },
        )
        calls.wait_for_all("load_wait", timeout_s, f"{what}, checking")
        calls.ask_all("load_apply")
        try:
            calls.wait_for_all("load_wait", timeout_s, what)
        except CheckpointError as error:
            raise type(error)(
                f"{what} broke off: its files have changed since they were checked. The tables "
                f"hold a part of it, load another: {error}"
            ) from error
    finally:
        calls.end("load_end")
    return checkpoint


def _require_fits(checkpoint: Checkpoint, spec: TableSpec) -> None:
    """Width and optimizer are those saved; what is counted of rows may differ."""
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
    if kind is None:  # imported values, which have no state
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
            f"{checkpoint.path}: expected optimizer state '{missing[0]}', found none: {kind} had "
            "other settings when it was saved"
        )
    return {"table": spec.name, "values": list(names), "state": state}


def _num_elements(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
