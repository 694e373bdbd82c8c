"""A `sparsefleet` command in a separate process that prints a line when it is ready."""

from __future__ import annotations

import functools
import re
import resource
import selectors
import signal
import subprocess
import sys
import tempfile

DEADLINE_S = 240.0  # generous, for a loaded machine


class CommandProcess:
    """Started by the constructor; `ready` is what its first line looks like.

    open_files: the soft and the hard limit of files that it may open; None: this process's own.
    prefix: words before the command, which must replace themselves by it.
    """

    def __init__(
        self,
        ready: re.Pattern[str],
        *words: str,
        open_files: tuple[int, int] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self._ready = ready
        limit = functools.partial(resource.setrlimit, resource.RLIMIT_NOFILE, open_files)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "sparsefleet", *words],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            preexec_fn=None if open_files is None else limit,
        )
        self.ready_line = ""

    def read_ready_line(self) -> re.Match[str]:
        """Return the line, once it is printed."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(DEADLINE_S):
                raise TimeoutError(f"not ready after {DEADLINE_S} s: {self.errors()}")
        self.ready_line = self.process.stdout.readline()
        found = self._ready.fullmatch(self.ready_line)
        if found is None:
            raise RuntimeError(f"not ready: it said {self.ready_line!r} and {self.errors()}")
        return found

    def errors(self) -> str:
        """Return what it has written to stderr so far."""
        self._errors.seek(0)
        return self._errors.read()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Return its exit code."""
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        """End it if it still runs; free everything."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()
