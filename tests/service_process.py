"""A `sparsefleet serve` in a process of its own, on a free port."""

from __future__ import annotations

import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

DEADLINE_S = 60.0
_READY = re.compile(r"sparsefleet serve listening on (?P<url>http://\S+): (?P<model>.*)\n")


class ServiceProcess:
    """``with ServiceProcess(export) as service: httpx.get(service.url + "/healthz")``"""

    def __init__(self, models: Path, *flags: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [sys.executable, "-m", "sparsefleet", "serve", str(models)]
        if "--port" not in flags:
            command += ["--port", "0"]
        self.process = subprocess.Popen(
            [*command, *flags], stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self.url = ""

    def wait_ready(self) -> str:
        """Its URL, once it says so."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(DEADLINE_S):
                raise TimeoutError(f"not ready after {DEADLINE_S} s: {self.errors()}")
        line = self.process.stdout.readline()
        found = _READY.fullmatch(line)
        if found is None:
            raise RuntimeError(f"it said {line!r} and {self.errors()}")
        self.url = found["url"]
        return self.url

    def errors(self) -> str:
        """What it wrote to stderr so far."""
        self._errors.seek(0)
        return self._errors.read()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        """Ends it if it still runs; frees everything."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()

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


def wait_until(holds: object, what: str) -> None:
    """Calls `holds` until it is true."""
    assert callable(holds)
    end = time.monotonic() + DEADLINE_S
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {DEADLINE_S} s for {what}")
        time.sleep(0.01)
