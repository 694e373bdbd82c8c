"""Workers that read the same files: it was forgotten to split them."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

from sparsefleet.errors import NotFoundError

if TYPE_CHECKING:
    from sparsefleet.fleet.distributed_model import DistributedModel

__all__ = ["warn_of_same_files"]

_log = logging.getLogger("sparsefleet.train")


def warn_of_same_files(distributed: DistributedModel, data: object) -> None:
    """Logs a warning if the worker before or after this one reads the very same files.

    Each leaves a note, and looks for those of the two: nobody waits, and who comes last sees it.
    """
    role, board = distributed.role, distributed.board
    files: list[str] | None = getattr(data, "own_files", None)
    if role.worker_num == 1 or not files:
        return
    mine = hashlib.sha256("\n".join(sorted(files)).encode()).digest()
    board.put_note(_note_of(role.index), mine)
    for other in {(role.index + step) % role.worker_num for step in (-1, 1)} - {role.index}:
        try:
            theirs = board.get_note(_note_of(other))
        except NotFoundError:
            continue
        if theirs == mine:
            _log.warning(
                "workers %d and %d read the same %d file(s), the first of them %s: each record is "
                "trained on more than once an epoch. Give each worker its part: "
                "Reader(..., worker_index=, worker_num=), fleet.split_files, or "
                "sharding=fleet.sharding(name)",
                *sorted((role.index, other)),
                len(files),
                files[0],
            )
            return


def _note_of(worker: int) -> str:
    return f"train/files/{worker}"
