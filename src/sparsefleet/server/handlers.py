"""The commands that every server answers."""

from __future__ import annotations

import json
from collections.abc import Callable

from sparsefleet import _core
from sparsefleet.server.command_loop import Handler
from sparsefleet.server.file_handlers import file_handlers
from sparsefleet.server.mailbox import Mailboxes
from sparsefleet.server.work_lists import work_list_handlers

__all__ = ["default_handlers"]


def default_handlers(
    tables: _core.Store,
    index: int,
    num_servers: int,
    *,
    save_root: str = "",
    has_client: Callable[[str], bool] = lambda _: True,
) -> dict[str, Handler]:
    """Handlers by the name of their command, for server ``index`` of ``num_servers``.

    ``tables`` is what this server holds of all tables; below ``save_root`` it saves and loads;
    ``has_client`` tells whether a client of that name is still there.
    """

    def ping(command: _core.Command) -> None:
        command.reply(json.dumps({"index": index, "num_servers": num_servers}).encode())

    return {
        "ping": ping,
        **file_handlers(tables, index, num_servers, save_root=save_root),
        **Mailboxes().handlers(),
        **work_list_handlers(has_client),
    }
