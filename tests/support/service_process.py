"""A `sparsefleet serve` in a separate process, on a free port."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType

from tests.support.command_process import DEADLINE_S, CommandProcess

__all__ = ["DEADLINE_S", "ServiceProcess"]

_READY = re.compile(r"sparsefleet serve listening on (?P<url>http://\S+): (?P<model>.*)\n")


class ServiceProcess(CommandProcess):
    """``with ServiceProcess(export) as service: httpx.get(service.url + "/healthz")``"""

    def __init__(self, models: Path, *flags: str) -> None:
        port = () if "--port" in flags else ("--port", "0")
        super().__init__(_READY, "serve", str(models), *port, *flags)
        self.url = ""

    def wait_ready(self) -> str:
        """Return its URL, once it is printed."""
        self.url = self.read_ready_line()["url"]
        return self.url

    def __enter__(self) -> ServiceProcess:
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
