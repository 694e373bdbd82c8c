"""Fixtures for all tests; no test reads or writes the user's own job key."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.rank_processes import RankProcesses
from tests.support.server_process import ServerProcess
from tests.support.servers import JOB_KEY


@pytest.fixture(autouse=True, scope="session")
def _usual_signals() -> None:
    """Reset signals, which a process inherits as ignored under nohup or as a shell's background
    job.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _own_key_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARSEFLEET_JOB_KEY", raising=False)
    monkeypatch.delenv("SPARSEFLEET_JOB_KEY_FILE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def job_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process the key of `NativeServers`."""
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())


@pytest.fixture
def start_server() -> Iterator[Callable[..., ServerProcess]]:
    """Start `sparsefleet server` processes; those still running end with the test."""
    started: list[ServerProcess] = []

    def start(*flags: str, open_files: tuple[int, int] | None = None) -> ServerProcess:
        server = ServerProcess(*flags, open_files=open_files)
        started.append(server)
        return server

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def fresh_programs() -> Iterator[None]:
    """Give a test its own default programs, scope and names of Fluid."""
    from sparsefleet import fluid

    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
    ):
        yield


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankProcesses]:
    """Yield processes for collective jobs; all but the first start quickly."""
    with RankProcesses() as processes:
        yield processes
