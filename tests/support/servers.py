"""Servers inside the test process: real sockets, free ports, ended with the test."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from sparsefleet import _core
from sparsefleet.server.command_loop import CommandLoop, Handler
from sparsefleet.server.run_server import default_handlers
from sparsefleet.store import RemoteStore, RemoteStoreConfig

JOB_KEY = b"a key for tests, thirty-two long"

SERVER_DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 0,
    "job_key": JOB_KEY,
    "transport": "auto",
    "index": 0,
    "num_servers": 1,
    "num_threads": 2,
    "max_connections": 1000,
    "max_unproven": 0,
    "max_unproven_per_address": 0,
    "max_frame_bytes": 64 << 20,
    "peer_timeout_s": 10.0,
    "handshake_timeout_s": 10.0,
    "frame_timeout_s": 30.0,
    "drain_timeout_s": 10.0,
    "notes": {},
    "log": None,
}


class NativeServers:
    """``with NativeServers(2) as servers, servers.connect() as store: ...``

    Commands go to the handlers of a real server, and to ``handlers``.
    """

    def __init__(
        self, count: int = 1, *, handlers: Mapping[str, Handler] | None = None, **options: Any
    ) -> None:
        self.messages: list[tuple[int, str]] = []
        settings = {**SERVER_DEFAULTS, "log": self._keep, **options}
        self.transport = settings["transport"]
        self.servers = [
            _core.Server(**{**settings, "index": index, "num_servers": count})
            for index in range(count)
        ]
        self.loops = [
            CommandLoop(
                server,
                {
                    **default_handlers(
                        server.tables(), index, count, has_session=server.has_session
                    ),
                    **(handlers or {}),
                },
            ).start()
            for index, server in enumerate(self.servers)
        ]

    def _keep(self, severity: int, message: str) -> None:
        self.messages.append((severity, message))

    @property
    def endpoints(self) -> list[str]:
        return [f"127.0.0.1:{server.port}" for server in self.servers]

    def connect(self, *, name: str = "client", **config: Any) -> RemoteStore:
        return RemoteStore(
            self.endpoints,
            name=name,
            transport=self.transport,
            job_key=JOB_KEY,
            config=RemoteStoreConfig(**config),
        )

    def stop(self) -> None:
        for server, loop in zip(self.servers, self.loops, strict=True):
            loop.stop()
            server.stop()

    def __enter__(self) -> NativeServers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
