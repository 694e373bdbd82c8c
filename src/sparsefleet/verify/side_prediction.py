"""Predictions of a side: its own, or those of the export's graph with its rows and parameters."""

from __future__ import annotations

from sparsefleet.export.feeds import Arrays
from sparsefleet.export.row_source import RowSource, Tables
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.verify.case import Case
from sparsefleet.verify.model_table import ModelTable
from sparsefleet.verify.offline_model import OfflineModel, joined
from sparsefleet.verify.picked_rows import FetchedRows, KeyRecorder, PickedRows, as_exported
from sparsefleet.verify.side import FoundRows, Side, Trace

__all__ = ["SidePrediction"]

_BATCH = 512


class SidePrediction:
    """Predicts the examples of a case as a side would."""

    def __init__(self, case: Case, side: Side) -> None:
        self._case = case
        self._side = side
        self._model: OfflineModel | None = None
        self._tables: Tables = {}

    def predict(self) -> Arrays | None:
        """Targets of all examples; None: the side has neither predictions nor rows."""
        examples = self._case.examples
        parts = []
        for batch in examples.batches(_BATCH):
            found = self._side.predict(batch)
            if found is None:
                break
            parts.append(found)
        if parts:
            return joined(parts)
        if not self._borrow_graph():
            return None
        assert self._model is not None
        return self._model.predict(examples, self._tables)

    def trace(self, arrays: Arrays) -> Trace | None:
        """The same from the inside, for a few examples; after `predict`."""
        if self._model is None:
            return self._side.trace(arrays)
        return self._model.trace(arrays, self._tables)

    def _borrow_graph(self) -> bool:
        """The graph of the export, with what the side has of rows and dense parameters."""
        dense, tables = self._side.dense(), self._side.tables()
        own = self._case.model
        if tables is None or any(
            name not in tables or tables[name].dim != file.entry.dim
            for name, file in own.tables.items()
        ):
            return False
        self._model = own.with_dense(dense or {})
        keys = self._needed_keys()
        self._tables = {name: self._rows(file, keys[name]) for name, file in own.tables.items()}
        return True

    def _needed_keys(self) -> dict[str, Keys]:
        recorders = {name: KeyRecorder(file) for name, file in self._case.model.tables.items()}
        self._case.model.predict(self._case.examples, recorders)
        return {name: recorder.keys for name, recorder in recorders.items()}

    def _rows(self, file: ModelTable, needed: Keys) -> RowSource:
        name = file.entry.name
        parts = self._side.stream(name)
        if parts is None:
            return FetchedRows(file, lambda keys: self._side.fetch(name, keys))
        return PickedRows(file, needed, (self._as_compared(file, part) for part in parts))

    def _as_compared(self, file: ModelTable, part: FoundRows) -> tuple[Keys, Floats]:
        """Rows of training in the format of the export: what that costs is no finding."""
        if self._side.role == "training":
            return part.keys, as_exported(file, part.keys, part.values)
        return part.keys, part.values
