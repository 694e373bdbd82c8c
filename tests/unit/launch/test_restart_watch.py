from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

import pytest

from sparsefleet.launch import restarts
from sparsefleet.launch.child_process import ChildProcess
from sparsefleet.launch.job_plan import ProcessPlan
from sparsefleet.launch.restarts import LostWorkers, RestartWatch


class Clock:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class RestartedProcess:
    """The attributes of a process that the watch reads."""

    pid = 4711

    def __init__(self, role: Literal["server", "worker"]) -> None:
        self.plan = ProcessPlan(role=role, index=1, command=(), log_path="")
        self.name = self.plan.name
        self.is_running = True


class Reports:
    """What would be reported to servers about workers."""

    def __init__(self) -> None:
        self.expected = 0
        self.back = False

    def expect(self, index: int) -> None:
        assert index == 1
        self.expected += 1

    def is_back(self, index: int) -> bool:
        assert index == 1
        return self.back


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(restarts, "time", made)
    return made


def watch_of(folder: Path, reports: Reports, listens: list[float]) -> RestartWatch:
    return RestartWatch(str(folder), cast(LostWorkers, reports), lambda _: listens[0])


def test_a_note_tells_of_a_server_until_it_listens(tmp_path: Path, clock: Clock) -> None:
    listens = [900.0]  # the process before
    watch = watch_of(tmp_path, Reports(), listens)
    watch.restarted(cast(ChildProcess, RestartedProcess("server")), 2)
    note = tmp_path / "server-1.restarting"
    assert "restarted it 0 s ago (restart 2, pid 4711)" in note.read_text()
    clock.now += 70.0
    watch.look()
    assert "restarted it 70 s ago" in note.read_text()
    listens[0] = 1071.0
    clock.now += 2.0
    watch.look()
    assert not list(tmp_path.iterdir())


def test_a_server_that_listens_is_noticed_after_the_clock_was_set_back(
    tmp_path: Path, clock: Clock
) -> None:
    listens = [1_700_000_000.0]
    watch = watch_of(tmp_path, Reports(), listens)
    watch.restarted(cast(ChildProcess, RestartedProcess("server")), 1)
    assert list(tmp_path.iterdir())
    listens[0] -= 3600.0
    clock.now += 2.0
    watch.look()
    assert not list(tmp_path.iterdir())


def test_no_note_stays_of_a_server_that_ends_or_never_listens(tmp_path: Path, clock: Clock) -> None:
    for is_running, seconds in ((False, 2.0), (True, 601.0)):
        watch = watch_of(tmp_path, Reports(), [0.0])
        process = RestartedProcess("server")
        watch.restarted(cast(ChildProcess, process), 1)
        assert list(tmp_path.iterdir())
        process.is_running = is_running
        clock.now += seconds
        watch.look()
        assert not list(tmp_path.iterdir())


def test_servers_are_told_of_a_worker_until_it_is_back(tmp_path: Path, clock: Clock) -> None:
    reports = Reports()
    watch = watch_of(tmp_path, reports, [0.0])
    watch.restarted(cast(ChildProcess, RestartedProcess("worker")), 1)
    for _ in range(100):
        clock.now += 1.0
        watch.look()
    assert 15 <= reports.expected <= 21
    reports.back = True
    clock.now += 10.0
    watch.look()
    before = reports.expected
    clock.now += 10.0
    watch.look()
    assert reports.expected == before
