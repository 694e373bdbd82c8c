"""What a kind of model adds to its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

__all__ = ["SaveHooks"]


class SaveHooks:
    """Nothing is added; a part of `DistributedModel`."""

    def collect(self) -> None:
        """Before a save: brings what only other workers know to the first. All call it."""

    def notes_to_save(self) -> dict[str, Any]:
        """What a checkpoint is to remember besides tensors and tables, for JSON."""
        return {}

    def take_notes(self, notes: Mapping[str, Any]) -> None:
        """What a checkpoint that is being loaded remembered so."""

    def fitted(self, tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The tensors of a checkpoint as this worker takes them."""
        return tensors
