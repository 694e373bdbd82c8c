"""A `sparsefleet server` in a separate process, on a free port."""

from __future__ import annotations

import re

from tests.support.command_process import DEADLINE_S, CommandProcess

__all__ = ["DEADLINE_S", "ServerProcess"]

_READY = re.compile(
    r"sparsefleet server (\d+) of (\d+) listening on (?P<endpoint>\S+) \((auto|tls|plain)\)\n"
)


class ServerProcess(CommandProcess):
    """Started by the constructor; `wait_ready()` gives its endpoint."""

    def __init__(
        self,
        *flags: str,
        open_files: tuple[int, int] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        port = () if "--endpoint" in flags else ("--endpoint", "127.0.0.1:0")
        super().__init__(_READY, "server", *port, *flags, open_files=open_files, prefix=prefix)

    def wait_ready(self) -> str:
        """Return the endpoint it listens on, once it is printed."""
        return self.read_ready_line()["endpoint"]
