"""A served model at one moment of its training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

from sparsefleet.errors import CheckpointMismatchError
from sparsefleet.updates.overlay import Overlay
from sparsefleet.updates.update import Update

__all__ = ["DenseValues", "ModelMoment"]


class DenseValues:
    """Dense parameters and buffers by name; one object for each moment."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = arrays


class ModelMoment(NamedTuple):
    """All that updates have changed since the export; immutable."""

    base: str
    """`Manifest.digest` of the export."""
    sequence: int
    moment: str
    made: float
    """When the trained model was so, seconds since 1970."""
    rows: Overlay
    dense: DenseValues

    @classmethod
    def of_whole(cls, update: Update) -> ModelMoment:
        """What a whole update leads to."""
        rows = Overlay().after(update.tables)
        dense = DenseValues(update.dense)
        return cls(update.base, update.sequence, update.moment, update.made, rows, dense)

    def after(self, update: Update) -> ModelMoment:
        """What a delta leads to; CheckpointMismatchError if it leads on from another moment."""
        if update.previous != self.moment or update.base != self.base:
            raise CheckpointMismatchError(
                f"update {update.sequence} leads on from moment {update.previous}, but this is "
                f"moment {self.moment}, number {self.sequence}: the log was begun anew"
            )
        return self._replace(
            sequence=update.sequence,
            moment=update.moment,
            made=update.made,
            rows=self.rows.after(update.tables),
            dense=DenseValues(update.dense),
        )

    def as_whole(self) -> Update:
        """A whole update that leads here."""
        return Update(
            base=self.base,
            sequence=self.sequence,
            moment=self.moment,
            previous=None,
            made=self.made,
            tables=self.rows.changes(),
            dense=self.dense.arrays,
        )
