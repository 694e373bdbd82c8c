"""A `sparsefleet server` in a process of its own, on a free port."""

from __future__ import annotations

import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time

DEADLINE_S = 60.0
_READY = re.compile(
    r"sparsefleet server (\d+) of (\d+) listening on (?P<endpoint>\S+) \((tls|plain)\)\n"
)


class ServerProcess:
    """Started by the constructor; `wait_ready()` gives its endpoint."""

    def __init__(self, *flags: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [sys.executable, "-m", "sparsefleet", "server"]
        if "--endpoint" not in flags:
            command += ["--endpoint", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, *flags], stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self.ready_line = ""

    def wait_ready(self) -> str:
        """The endpoint it listens on, once it says so."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            end = time.monotonic() + DEADLINE_S
            while not self.ready_line.endswith("\n"):
                if not selector.select(end - time.monotonic()):
                    raise TimeoutError(f"server not ready after {DEADLINE_S} s: {self.errors()}")
                text = self.process.stdout.readline()
                if not text:
                    raise RuntimeError(f"server ended before it was ready: {self.errors()}")
                self.ready_line += text
        found = _READY.fullmatch(self.ready_line)
        assert found is not None, self.ready_line
        return found["endpoint"]

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
