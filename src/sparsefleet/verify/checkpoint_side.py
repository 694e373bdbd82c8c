"""A checkpoint: what training saved, and what the export should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.export.feeds import Arrays
from sparsefleet.verify.side import FoundRows, Role, Side, TableFacts

__all__ = ["CheckpointSide"]


class CheckpointSide(Side):
    """A checkpoint, full or a delta with what it builds on."""

    role: Role = "training"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._checkpoint = Checkpoint.open(name)

    def dense(self) -> Arrays:
        """Without optimizer state."""
        tensors = self._checkpoint.dense()
        return {
            name: tensor
            for name, tensor in tensors.items()
            if name.rpartition("/")[0] not in tensors
        }

    def tables(self) -> Mapping[str, TableFacts]:
        tables = self._checkpoint.manifest.tables
        return {entry.name: TableFacts(entry.dim) for entry in tables}

    def stream(self, table: str) -> Iterator[FoundRows]:
        for chunk in self._checkpoint.rows(table, columns=("values",)):
            yield FoundRows(chunk.keys, np.ones(len(chunk.keys), np.bool_), chunk.values)
