"""A real Redis server for a test, on a free port; the test is skipped if it is not installed."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

import pytest

WAIT_S = 20.0


class RedisProcess:
    """``with RedisProcess(tmp_path) as redis: RedisRows(redis.url)``"""

    def __init__(self, directory: Path, *options: str) -> None:
        self.program = shutil.which("redis-server")
        if self.program is None:
            pytest.skip("there is no redis-server: scripts/install_system_packages.sh installs it")
        pytest.importorskip("redis", reason="pip install sparsefleet[redis]")
        self._directory = directory
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0?model=shop"

    def start(self) -> None:
        """Start it, empty, at first or after `kill`; return when it answers."""
        assert self.program is not None
        self._process = subprocess.Popen(
            [
                self.program,
                *("--port", str(self.port), "--bind", "127.0.0.1", "--save", ""),
                *("--dir", str(self._directory), "--appendonly", "no", *self._options),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + WAIT_S
        while not self._answers():
            assert self._process.poll() is None, "redis-server ended"
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.01)

    def kill(self) -> None:
        """Crash: its contents are lost."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Suspend it: it keeps its connections and answers nobody."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(100).startswith(b"+PONG")
        except OSError:
            return False

    def __enter__(self) -> RedisProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self.kill()
