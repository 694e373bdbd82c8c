"""Threads that hand a server's commands to their handlers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sparsefleet import _core
from sparsefleet.errors import ShuttingDownError, code_name_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CommandLoop", "Handler"]

Handler = Callable[[_core.Command], None]
"""Answers a command, now or, keeping it, later from any thread; one dropped without an answer
fails. What it raises becomes the answer: see `CommandLoop`."""

_log = logging.getLogger("sparsefleet.server")

# A thread that waits costs nothing, and draining wakes it; the call needs some end.
_WAIT_S = 3600.0


class CommandLoop:
    """Takes the commands of ``server`` and gives each to the handler of its name.

    ``threads`` handlers run at a time; one that would wait for another command should keep its own
    and return. An error of this package, or an ``OSError``, goes to the caller as the same kind
    of error; any other exception is logged and goes there as ``InternalError``. A
    command without a handler is a ``NotFoundError`` at its caller.
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
        """Begins to take commands."""
        for thread in self._threads:
            thread.start()
        return self

    def stop(self, timeout_s: float = 30.0) -> bool:
        """Takes no more commands: those that wait, and new ones, fail with ``ShuttingDownError``.

        Returns when the handlers at work have ended, or after ``timeout_s``: then False.
        Commands that a handler has kept are not waited for. Idempotent.
        """
        self._server.drain_commands()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        busy = sum(thread.is_alive() for thread in self._threads)
        if busy:
            _log.warning("%d commands were still at work after %g s", busy, timeout_s)
        return not busy

    def _work(self) -> None:
        while True:
            try:
                command = self._server.next_command(_WAIT_S)
            except ShuttingDownError:
                return
            if command is not None:
                self._handle(command)
            del command  # kept, or answered: by its handler alone

    def _handle(self, command: _core.Command) -> None:
        handler = self._handlers.get(command.name)
        if handler is None:
            known = ", ".join(sorted(self._handlers)) or "none"
            command.fail("NOT_FOUND", f"this server has no such command; it has: {known}")
            return
        try:
            handler(command)
        except Exception as error:  # the edge at which a handler fails without the server
            code = code_name_of(error)
            if code is None or code == "INTERNAL":
                _log.exception("command '%s' of %s failed", command.name, command.client)
            command.fail(code or "INTERNAL", str(error) if code else repr(error))
