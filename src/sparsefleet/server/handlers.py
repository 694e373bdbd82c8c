"""The command handlers that every server has."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from sparsefleet import _core
from sparsefleet.server.command_loop import CommandStates, Handler, HasSession
from sparsefleet.server.mailbox import Mailboxes
from sparsefleet.server.work_lists import work_list_handlers

if TYPE_CHECKING:
    from sparsefleet.server.table_files import TableFiles

__all__ = [
    "default_handlers",
    "file_handlers",
    "profile_handlers",
]

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
    "sees_saves",
)


_MAX_PROFILED = 1_000_000

ChangeInBulk = Callable[[Callable[[], None]], None]
"""Calls a function that changes many rows, and makes the rows durable before returning."""


def file_handlers(
    tables: _core.Store,
    index: int,
    num_servers: int,
    *,
    save_root: str = "",
    change_in_bulk: ChangeInBulk | None = None,
) -> dict[str, Handler]:
    """Return the handlers for the commands that save and load, by name; see `TableFiles`.

    The first such command imports their code, so servers that never save do not load it.
    """
    lock = threading.Lock()
    made: list[TableFiles] = []

    def handle(command: _core.Command) -> None:
        from sparsefleet.server.table_files import TableFiles

        with lock:
            if not made:
                files = TableFiles(
                    tables,
                    index,
                    num_servers,
                    save_root=save_root,
                    change_in_bulk=change_in_bulk,
                )
                made.append(files)
        command.reply(made[0].calls()[command.name](command.body))

    return dict.fromkeys(_COMMANDS, handle)


def profile_handlers(server: _core.Server) -> dict[str, Handler]:
    """Return the handlers for the commands that profile a server's requests."""

    def begin(command: _core.Command) -> None:
        server.begin_profile(max(0, min(int(command.body), _MAX_PROFILED)))
        command.reply(b"")

    def take(command: _core.Command) -> None:
        command.reply(json.dumps(server.take_profile()).encode())

    return {"profile_begin": begin, "profile_take": take}


def default_handlers(
    tables: _core.Store,
    index: int,
    num_servers: int,
    *,
    save_root: str = "",
    has_session: HasSession = lambda _: True,
    states: CommandStates | None = None,
    change_in_bulk: ChangeInBulk | None = None,
    drop_clients: Callable[[str], int] = lambda _: 0,
    expect_clients: Callable[[str], int] = lambda _: 0,
) -> dict[str, Handler]:
    """Return all handlers of server ``index`` of ``num_servers``, by command name.

    ``tables`` is this server's part of all tables. Saves and loads are restricted to ``save_root``.
    ``has_session`` returns whether the session of a client is alive; ``drop_clients`` marks the
    clients with a given name as lost because their process has exited; ``expect_clients`` waits
    longer for clients whose process is being restarted. On a durable server, ``states`` records the
    changes that commands make, and loads run in ``change_in_bulk``.
    """
    mailboxes = Mailboxes(has_session=has_session)
    if states is not None:
        states.add("mail.", mailboxes)

    def ping(command: _core.Command) -> None:
        command.reply(json.dumps({"index": index, "num_servers": num_servers}).encode())

    def drop(command: _core.Command) -> None:
        command.reply(json.dumps({"dropped": drop_clients(command.body.decode())}).encode())

    def expect(command: _core.Command) -> None:
        command.reply(json.dumps({"awaited": expect_clients(command.body.decode())}).encode())

    return {
        "client_ended": drop,
        "client_restarting": expect,
        "ping": ping,
        **file_handlers(
            tables, index, num_servers, save_root=save_root, change_in_bulk=change_in_bulk
        ),
        **mailboxes.handlers(),
        **work_list_handlers(has_session, states),
    }
