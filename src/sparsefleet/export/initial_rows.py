"""What rows of an exported table would start with."""

from __future__ import annotations

from typing import Any

from sparsefleet.export.manifest import TableEntry
from sparsefleet.store import (
    Constant,
    Initializer,
    LocalStore,
    Normal,
    TableSpec,
    TruncatedNormal,
    Uniform,
)
from sparsefleet.store.arrays import Floats, Keys

__all__ = ["InitialRows"]

_INITIALIZERS: dict[str, Any] = {
    "normal": Normal,
    "truncated_normal": TruncatedNormal,
    "uniform": Uniform,
}


class InitialRows:
    """The initializer of a table, at hand when a key without a row is asked for. Thread-safe."""

    def __init__(self, entry: TableEntry) -> None:
        self._entry = entry
        self._store: LocalStore | None = None

    def of(self, keys: Keys) -> Floats:
        """What rows of these keys, uint64[U], would start with: float32[U, D]."""
        entry, store = self._entry, self._store
        if store is None:
            store = LocalStore()
            store.define(
                TableSpec(
                    name=entry.name,
                    dim=entry.dim,
                    seed=entry.initial.seed,
                    initializer=_initializer(entry),
                )
            )
            self._store = store  # two threads may make one each: they are alike
        return store.pull(entry.name, keys, train=False, unknown="initial")


def _initializer(entry: TableEntry) -> Initializer:
    initial = entry.initial
    if initial.kind == "constant":
        return Constant(initial.a)
    made: Initializer = _INITIALIZERS[initial.kind](initial.a, initial.b)
    return made
