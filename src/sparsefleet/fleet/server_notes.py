"""What servers tell workers from their start on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sparsefleet.errors import NotFoundError

if TYPE_CHECKING:
    from sparsefleet.fleet.board import Board

__all__ = ["MODEL_DIR_NOTE", "directory_of_servers"]

MODEL_DIR_NOTE = "fleet/model_dir"
"""The note with the directory from which the tables are to be loaded."""


def directory_of_servers(board: Board) -> str | None:
    """The directory in that note; None if they were told none."""
    try:
        return os.fsdecode(board.get_note(MODEL_DIR_NOTE))
    except NotFoundError:
        return None
