"""Sends commands to all servers of a store at once, for long-running work."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from sparsefleet.errors import DeadlineError, SparseFleetError

if TYPE_CHECKING:
    from sparsefleet.store.store import Store

__all__ = ["ServerCalls"]

_MAX_CALLS = 32  # at a time
_WAIT_S = 1.0
_END_S = 3.0  # do not wait for a lost server


class ServerCalls:
    """Controls a long-running task on every server, identified by a token. Thread-safe."""

    def __init__(self, store: Store, token: str) -> None:
        self._store = store
        self._token = token

    @property
    def servers(self) -> range:
        return range(self._store.num_servers)

    def ask(
        self,
        server: int,
        name: str,
        asked: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> bytes:
        """Send a command to one server and return its reply."""
        body = json.dumps({"token": self._token, **(asked or {})}).encode()
        return self._store.command(server, name, body, timeout_s=timeout_s)

    def ask_all(
        self,
        name: str,
        asked: Mapping[str, Any] | None = None,
        servers: Collection[int] | None = None,
    ) -> dict[int, Any]:
        """Return the JSON replies by server. Waits for all replies, then raises the first error."""
        chosen = self.servers if servers is None else servers

        def ask(server: int) -> Any:
            return json.loads(self.ask(server, name, asked))

        if len(chosen) == 1:
            return {server: ask(server) for server in chosen}
        with ThreadPoolExecutor(min(len(chosen), _MAX_CALLS)) as pool:
            answers = {server: pool.submit(ask, server) for server in chosen}
        return {server: answer.result() for server, answer in answers.items()}

    def wait_for_all(self, name: str, timeout_s: float, what: str) -> dict[int, Any]:
        """Repeat command `name` until no server's reply is null; return the replies."""
        deadline = time.monotonic() + timeout_s
        done: dict[int, Any] = {}
        while len(done) < len(self.servers):
            waiting = [server for server in self.servers if server not in done]
            answers = self.ask_all(name, {"wait_s": _WAIT_S}, waiting)
            done |= {server: answer for server, answer in answers.items() if answer is not None}
            if len(done) < len(self.servers) and time.monotonic() > deadline:
                late = ", ".join(str(server) for server in self.servers if server not in done)
                raise DeadlineError(
                    f"{what}: server {late} did not finish within {timeout_s:g} s (timeout_s)"
                )
        return dict(sorted(done.items()))

    def end(self, name: str, asked: Mapping[str, Any] | None = None) -> None:
        """End the task on all reachable servers. Never raises an error."""
        for server in self.servers:
            try:
                self.ask(server, name, asked, timeout_s=_END_S)
            except SparseFleetError:
                continue  # the server cancels the work when its lease expires
