"""An engine that keeps up with dense parameters that are updated."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from sparsefleet.export.feeds import Arrays
from sparsefleet.export.row_source import Tables
from sparsefleet.serve.moment_tables import dense_of
from sparsefleet.updates import DenseValues

__all__ = ["FollowingEngine", "UpdatableEngine"]

_KEPT = 2  # predictions on the moment before may still be under way


class UpdatableEngine(Protocol):
    """What computes."""

    def predict(self, arrays: Arrays, tables: Tables) -> Arrays: ...

    def with_dense(self, arrays: Mapping[str, NDArray[Any]]) -> UpdatableEngine: ...


class FollowingEngine:
    """Computes with the dense parameters of the same moment as the rows. Thread-safe."""

    def __init__(self, engine: UpdatableEngine) -> None:
        self._exported = engine
        self._newer: list[tuple[DenseValues, UpdatableEngine]] = []
        self._lock = threading.Lock()

    def predict(self, arrays: Arrays, tables: Tables) -> Arrays:
        """Targets of inputs, with the rows and the dense parameters of these tables."""
        dense = dense_of(tables)
        engine = self._exported if dense is None else self._with(dense)
        return engine.predict(arrays, tables)

    def prepare(self, dense: DenseValues) -> None:
        """Gets ready for a moment, so that the first prediction on it need not wait.

        Raises CheckpointMismatchError if it is of another model.
        """
        self._with(dense)

    def _with(self, dense: DenseValues) -> UpdatableEngine:
        for known, engine in self._newer:
            if known is dense:
                return engine
        with self._lock:
            for known, engine in self._newer:
                if known is dense:
                    return engine
            made = self._exported.with_dense(dense.arrays)
            self._newer = [(dense, made), *self._newer][:_KEPT]
            return made
