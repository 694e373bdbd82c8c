"""The commands of saving and loading, for a server's loop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from sparsefleet import _core
from sparsefleet.server.command_loop import Handler

if TYPE_CHECKING:
    from sparsefleet.server.table_files import TableFiles

__all__ = ["file_handlers"]

_COMMANDS = (
    "dense_place",
    "dense_write",
    "files_ready",
    "load_apply",
    "load_begin",
    "load_end",
    "load_wait",
    "save_begin",
    "save_dense",
    "save_end",
    "save_wait",
    "save_write",
)


def file_handlers(
    tables: _core.Store, index: int, num_servers: int, *, save_root: str = ""
) -> dict[str, Handler]:
    """Handlers by the name of their command; see `TableFiles`.

    What they stand on is loaded with the first of them: a server that never saves does without.
    """
    lock = threading.Lock()
    made: list[TableFiles] = []

    def handle(command: _core.Command) -> None:
        from sparsefleet.server.table_files import TableFiles

        with lock:
            if not made:
                made.append(TableFiles(tables, index, num_servers, save_root=save_root))
        command.reply(made[0].calls()[command.name](command.body))

    return dict.fromkeys(_COMMANDS, handle)
