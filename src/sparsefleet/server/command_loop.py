"""Commands to a server: format, sessions that own resources, handler threads, and logged states.

Format of a body with a head: length of the head u32, head (JSON in UTF-8), bytes. Little-endian.
"""

from __future__ import annotations

import json
import logging
import struct
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sparsefleet import _core
from sparsefleet.errors import NotOwnerError, ProtocolError, ShuttingDownError, code_name_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "Answered",
    "CommandLoop",
    "CommandStates",
    "Handler",
    "HasSession",
    "Holders",
    "Keeper",
    "pack_body",
    "unpack_body",
]

_LENGTH = struct.Struct("<I")


def pack_body(head: Mapping[str, Any], data: bytes = b"") -> bytes:
    """Return the body of a command or reply, packed from a JSON head and bytes.

    >>> unpack_body(pack_body({"to": 1}, b"bytes"))
    ({'to': 1}, b'bytes')
    """
    text = json.dumps(head).encode()
    return b"".join([_LENGTH.pack(len(text)), text, data])


def unpack_body(body: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the arguments that `pack_body` packed. Raises ProtocolError for a malformed body."""
    if len(body) >= _LENGTH.size:
        end = _LENGTH.size + _LENGTH.unpack_from(body)[0]
        if end <= len(body):
            try:
                head = json.loads(body[_LENGTH.size : end])
            except ValueError as error:
                raise ProtocolError(f"command head: expected JSON: {error}") from error
            if isinstance(head, dict):
                return head, body[end:]
    raise ProtocolError(f"command body of {len(body)} bytes has no head")


HasSession = Callable[[int], bool]
"""Returns whether a session is alive, that is, its client has neither left nor been lost."""


class Holders:
    """Tracks which session owns each resource. Not thread-safe.

    The first session to claim a resource becomes its owner.

    >>> alive = {1, 2}
    >>> holders = Holders(alive.__contains__)
    >>> holders.claim("box 0", 1, "mailbox 0")
    >>> alive.remove(1)
    >>> holders.claim("box 0", 2, "mailbox 0")  # while 1 was alive: NotOwnerError
    >>> holders.is_present("box 0")
    True
    """

    def __init__(self, has_session: HasSession) -> None:
        self._has_session = has_session
        self._sessions: dict[Hashable, int] = {}

    def claim(self, thing: Hashable, session: int, called: str) -> None:
        """Make the session the owner of a resource. Errors refer to the resource as `called`.

        Raises NotOwnerError if another live session owns it.
        """
        holder = self._sessions.get(thing, session)
        if holder != session and self._has_session(holder):
            raise NotOwnerError(
                f"{called} belongs to session {holder}, which is alive; session {session} cannot "
                "take over. Give each worker its own index, or stop the other process: ownership "
                "is released when it closes its store, or after the server's peer timeout"
            )
        self._sessions[thing] = session

    def is_present(self, thing: Hashable) -> bool:
        """Return whether a live session owns the resource."""
        holder = self._sessions.get(thing)
        return holder is not None and self._has_session(holder)

    def release(self, thing: Hashable) -> None:
        """Remove the owner of the resource."""
        self._sessions.pop(thing, None)

    def dump(self) -> list[tuple[Any, int]]:
        """Return the owners; `load` restores them."""
        return list(self._sessions.items())

    def load(self, held: Iterable[tuple[Any, int]]) -> None:
        """Restore the owners that `dump` returned, whether or not their sessions are alive."""
        self._sessions = dict(held)


Handler = Callable[[_core.Command], None]
"""Answers a command, immediately or later, from any thread. A command fails if it is
garbage-collected before it is answered. See `CommandLoop` for exceptions.
"""

_log = logging.getLogger("sparsefleet.server")

# Waiting is free and draining wakes the thread, but the call needs a timeout.
_WAIT_S = 3600.0


class CommandLoop:
    """Dispatches the commands of ``server`` to handlers by name.

    Up to ``threads`` handlers run at a time; a handler that must wait for another command should
    keep its command, return, and answer later. The caller gets this package's errors and
    ``OSError`` as the same class; any other exception is logged and becomes ``InternalError``. A
    command without a handler raises ``NotFoundError`` in its caller.
    """

    def __init__(
        self, server: _core.Server, handlers: Mapping[str, Handler], *, threads: int = 4
    ) -> None:
        self._server = server
        self._handlers = dict(handlers)
        self._threads = [
            threading.Thread(target=self._work, name=f"sparsefleet-command-{i}", daemon=True)
            for i in range(threads)
        ]

    def start(self) -> Self:
        """Start taking commands."""
        for thread in self._threads:
            thread.start()
        return self

    def stop(self, timeout_s: float = 30.0) -> bool:
        """Stop taking commands; waiting and new commands fail with ``ShuttingDownError``.

        Waits up to ``timeout_s`` for running handlers, but not for commands to be answered later;
        returns whether all handlers have finished. Idempotent.
        """
        self._server.drain_commands()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        busy = sum(thread.is_alive() for thread in self._threads)
        if busy:
            _log.warning("%d commands were still running after %g s", busy, timeout_s)
        return not busy

    def _work(self) -> None:
        while True:
            try:
                command = self._server.next_command(_WAIT_S)
            except ShuttingDownError:
                return
            if command is not None:
                self._handle(command)
            del command  # only its handler may keep it alive

    def _handle(self, command: _core.Command) -> None:
        handler = self._handlers.get(command.name)
        if handler is None:
            known = ", ".join(sorted(self._handlers)) or "none"
            command.fail("NOT_FOUND", f"unknown command; this server supports: {known}")
            return
        try:
            handler(command)
        except Exception as error:  # a failed handler must not stop the server
            code = code_name_of(error)
            if code is None or code == "INTERNAL":
                _log.exception("command '%s' from %s failed", command.name, command.client)
            command.fail(code or "INTERNAL", str(error) if code else repr(error))


# Logs and recovers the state that commands change on a durable server.
#
# A server logs each answered command whose name starts with a known prefix. After a restart, each
# state is rebuilt from the last version written and the commands answered since.


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
