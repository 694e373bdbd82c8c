"""Logs and recovers the state that commands change on a durable server.

A server logs each answered command whose name starts with a known prefix. After a restart, each
state is rebuilt from the last version written and the commands answered since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from sparsefleet import _core

__all__ = ["Answered", "CommandStates", "Keeper"]

_log = logging.getLogger("sparsefleet.server")


class Answered(NamedTuple):
    """A command that was answered before a restart."""

    name: str
    client: str
    session: int
    body: bytes
    reply: bytes


class Keeper(Protocol):
    """An object that owns state that commands change."""

    def hold(self) -> AbstractContextManager[object]:
        """Return a context manager that holds back all changes to the state and all answers."""

    def dump(self) -> bytes:
        """Return the state; must be called within `hold`."""

    def load(self, state: bytes) -> None:
        """Restore a state that `dump` returned."""

    def replay(self, answered: Answered) -> None:
        """Repeat the effect of a command that was answered before a restart."""


class CommandStates:
    """The keepers of a server's states, keyed by the prefix of their commands."""

    prefixes = ("mail.", "work.")

    def __init__(self) -> None:
        self._keepers: dict[str, Keeper] = {}
        self._append: Callable[[str, bytes], None] | None = None

    def add(self, prefix: str, keeper: Keeper) -> None:
        """Register the keeper of the state that commands with this prefix change."""
        self._keepers[prefix] = keeper

    def recover(self, server: _core.Server) -> None:
        """Restore all states from the server's log, and start logging changes."""
        for is_state, name, client, session, body, reply in server.take_recovered_commands():
            if is_state:
                self._keepers[name].load(body)
                continue
            answered = Answered(name, client, session, body, reply)
            self._keepers[f"{name.split('.')[0]}."].replay(answered)
        self._append = server.append_command_state

    def write(self, _severity: int = 0, _text: str = "") -> None:
        """Write all states to the log, which makes earlier records obsolete."""
        if self._append is None:
            return
        for prefix, keeper in self._keepers.items():
            with keeper.hold():
                self._append(prefix, keeper.dump())
