"""The commands that every server answers."""

from __future__ import annotations

import json

from sparsefleet import _core
from sparsefleet.server.command_loop import Handler
from sparsefleet.server.file_handlers import file_handlers

__all__ = ["default_handlers"]


def default_handlers(
    tables: _core.Store, index: int, num_servers: int, *, save_root: str = ""
) -> dict[str, Handler]:
    """Handlers by the name of their command, for server ``index`` of ``num_servers``.

    ``tables`` is what this server holds of all tables; below ``save_root`` it saves and loads.
    """

    def ping(command: _core.Command) -> None:
        command.reply(json.dumps({"index": index, "num_servers": num_servers}).encode())

    files = file_handlers(tables, index, num_servers, save_root=save_root)
    return {"ping": ping, **files}
