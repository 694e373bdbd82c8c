"""The commands that every server answers."""

from __future__ import annotations

import json

from sparsefleet import _core
from sparsefleet.server.command_loop import Handler

__all__ = ["default_handlers"]


def default_handlers(tables: _core.Store, index: int, num_servers: int) -> dict[str, Handler]:
    """Handlers by the name of their command, for server ``index`` of ``num_servers``.

    ``tables`` is what this server holds of all tables.
    """
    del tables

    def ping(command: _core.Command) -> None:
        command.reply(json.dumps({"index": index, "num_servers": num_servers}).encode())

    return {"ping": ping}
