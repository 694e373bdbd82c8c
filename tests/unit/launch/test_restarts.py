"""Which processes are restarted alone, and how the others learn about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

import pytest
from tests.support.launch_process import wait_until
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet.errors import ConfigError
from sparsefleet.launch import LaunchConfig, restarts
from sparsefleet.launch.child_process import ChildProcess
from sparsefleet.launch.job_plan import ProcessPlan
from sparsefleet.launch.restarts import (
    START_ELSEWHERE,
    WINDOW_S,
    LostWorkers,
    RestartPolicy,
    RestartWatch,
)


class EndedProcess:
    """The attributes of an ended process that the policy reads."""

    def __init__(
        self, exit_code: int, role: Literal["server", "worker"] = "worker", lived_s: float = 100.0
    ) -> None:
        self.plan = ProcessPlan(role=role, index=0, command=(), log_path="")
        self.name = self.plan.name
        self.exit_code = exit_code
        self.lived_s = lived_s


def config(**fields: Any) -> LaunchConfig:
    return LaunchConfig(script="train", is_module=True, **{"restart": "killed", **fields})


def judge(policy: RestartPolicy, ended: EndedProcess, *, has_served: bool = False) -> bool:
    return policy.judge(cast(ChildProcess, ended), has_served=has_served).restarts


def test_auto_depends_on_durability_and_on_the_limit() -> None:
    auto = LaunchConfig(script="train", is_module=True)
    assert (auto.restart_rule, auto.restart_limit) == ("killed", 20)
    limited = LaunchConfig(script="train", is_module=True, max_restarts=3)
    assert (limited.restart_rule, limited.restart_limit) == ("killed", 3)
    assert (limited.max_starts_of_all, auto.max_starts_of_all) == (3, 0)
    for fields in ({"durability": "off"}, {"num_servers": 0}):
        plain = LaunchConfig(script="train", is_module=True, **fields)  # type: ignore[arg-type]
        assert (plain.restart_rule, plain.restart_limit) == ("all", 0)


def test_one_process_alone_needs_durable_servers() -> None:
    with pytest.raises(ConfigError, match="needs durable servers.*restart='all'"):
        config(durability="off")
    with pytest.raises(ConfigError, match="needs servers"):
        config(num_servers=0)


def test_which_failures_are_covered() -> None:
    killed = RestartPolicy(config())
    assert judge(killed, EndedProcess(-9))
    assert not judge(killed, EndedProcess(START_ELSEWHERE))
    assert not judge(killed, EndedProcess(1))
    assert judge(killed, EndedProcess(1, "server"), has_served=True)
    assert not judge(killed, EndedProcess(1, "server"))
    assert judge(RestartPolicy(config(restart="failed")), EndedProcess(1))
    assert not judge(RestartPolicy(config(restart="all")), EndedProcess(-9))


def test_killed_rank_is_restarted_alone_where_the_others_can_wait_for_it() -> None:
    limited = LaunchConfig(script="train", is_module=True, num_servers=0, max_restarts=1)
    policy = RestartPolicy(limited)
    assert limited.replaces_ranks
    killed, failed = (cast(ChildProcess, EndedProcess(code)) for code in (-9, 1))
    assert not policy.judge(killed).restarts
    assert not policy.judge(failed, is_replaceable=True).restarts
    assert policy.judge(killed, is_replaceable=True).restarts
    assert not policy.judge(killed, is_replaceable=True).restarts, "only once"


@pytest.mark.parametrize(
    "fields",
    [
        {"num_servers": 1, "max_restarts": 1},
        {"num_servers": 0},
        {"num_servers": 0, "max_restarts": 1, "restart": "all"},
        {"num_servers": 0, "max_restarts": 1, "nodes": ("a", "b"), "start_port": 6000},
    ],
)
def test_no_rank_is_replaced(fields: dict[str, Any]) -> None:
    plain = {"script": "train", "is_module": True, "num_workers": 2}
    assert not LaunchConfig(**plain | fields).replaces_ranks


def test_worker_with_a_loop_of_its_own_is_restarted_only_if_asked() -> None:
    for rule, expected in (("auto", False), ("killed", True)):
        policy = RestartPolicy(config(restart=rule))
        verdict = policy.judge(cast(ChildProcess, EndedProcess(-9)), has_own_loop=True)
        assert verdict.restarts is expected
        assert expected or "use --restart killed" in verdict.reason


def test_limit_counts_each_process_within_a_window() -> None:
    now = 0.0
    policy = RestartPolicy(config(max_restarts=2), clock=lambda: now)
    worker, server = EndedProcess(-9), EndedProcess(-9, "server")
    assert [judge(policy, worker) for _ in range(3)] == [True, True, False]
    assert judge(policy, server)
    now = WINDOW_S + 1
    assert judge(policy, worker)


def test_process_that_fails_by_itself_right_after_its_start_is_given_up() -> None:
    policy = RestartPolicy(config())
    crash = EndedProcess(-11, lived_s=0.5)
    assert judge(policy, crash)
    assert judge(policy, crash)
    verdict = policy.judge(cast(ChildProcess, crash))
    assert not verdict.restarts
    assert "3 times in a row" in verdict.reason
    patient = RestartPolicy(config())
    for _ in range(5):
        assert judge(patient, EndedProcess(-9, lived_s=0.5)), "killed from outside"
        assert judge(patient, EndedProcess(-11, lived_s=20.0)), "it ran for a while"


ENVIRON = {"SPARSEFLEET_JOB_KEY": JOB_KEY.decode()}


def test_a_worker_that_no_server_awaits_is_back() -> None:
    with NativeServers(2) as servers:
        reports = LostWorkers(servers.endpoints, "auto", ENVIRON)
        assert not reports.is_back(1)
        reports.expect(1)
        wait_until(lambda: reports.is_back(1), "both servers have answered")
        reports.close()


def test_no_server_misses_the_launcher_while_another_is_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "sparsefleet.launch")
    with NativeServers(2, peer_timeout_s=60.0) as servers:
        servers.loops[1].stop()
        servers.servers[1].stop()
        reports = LostWorkers(servers.endpoints, "auto", ENVIRON)
        reports.expect(1)
        wait_until(
            lambda: "has not reached all servers yet" in caplog.text, "the report has failed"
        )
        reports.close()
        assert not servers.servers[0].has_client("launcher")
        assert not reports.is_back(1)


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
