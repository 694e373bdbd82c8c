"""Several launchers as the nodes of one job, all on loopback."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess, wait_until
from tests.support.ports import free_ports

StartNode = Callable[..., LaunchProcess]

SCRIPT = """\
import os, pathlib, sys, time
role, index = os.environ["SPARSEFLEET_ROLE"], int(os.environ["SPARSEFLEET_INDEX"])
pathlib.Path(f"env-{role}-{index}").write_text(os.environ["SPARSEFLEET_SERVERS"])
pathlib.Path(f"job-{role}-{index}").write_text(os.environ["SPARSEFLEET_JOB_ID"])
pathlib.Path("pids", f"{role}-{index}").write_text(f"{os.getpid()}\\n")
while role == "server":
    time.sleep(60)
while not os.path.exists(f"end-{index}"):
    time.sleep(0.01)
sys.exit(int(pathlib.Path(f"end-{index}").read_text()))
"""


@pytest.fixture
def start_port() -> int:
    """Return a port that is free, together with the three that follow it."""
    return free_ports(4)[0]


@pytest.fixture
def start_node(
    tmp_path: Path, start_port: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StartNode]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", "the key of the job on two nodes")
    (tmp_path / "train.py").write_text(SCRIPT)
    started: list[LaunchProcess] = []

    def start(rank: int, *words: str) -> LaunchProcess:
        nodes = ("--nodes", "127.0.0.1,127.0.0.1", "--node-rank", str(rank))
        shape = ("--servers", "2", "--workers", "3", "--start-port", str(start_port))
        launcher = LaunchProcess(tmp_path, *nodes, *shape, *words, "train.py")
        started.append(launcher)
        return launcher

    yield start
    for launcher in started:
        launcher.close()


def end_worker(directory: Path, index: int, code: int = 0) -> None:
    draft = directory / f"draft-{index}"
    draft.write_text(str(code))
    draft.rename(directory / f"end-{index}")


def have_met(launchers: list[LaunchProcess]) -> bool:
    return all("joined" in launcher.output() for launcher in launchers)


def test_processes_are_dealt_and_servers_stay_until_all_nodes_are_done(
    start_node: StartNode, start_port: int, tmp_path: Path
) -> None:
    first, second = start_node(0), start_node(1)
    pids = first.wait_for_pids(5)
    assert sorted(pids) == ["server-0", "server-1", "worker-0", "worker-1", "worker-2"]
    for name in pids:
        wanted = f"127.0.0.1:{start_port},127.0.0.1:{start_port + 1}"
        assert (tmp_path / f"env-{name}").read_text() == wanted
    jobs = {(tmp_path / f"job-{name}").read_text() for name in pids}
    assert len(jobs) == 1
    assert jobs.pop()
    assert "worker 2 started" in second.output()
    assert "worker 2 started" not in first.output()
    end_worker(tmp_path, 0)
    end_worker(tmp_path, 1)
    waiting = "all workers on this node are done; waiting for the other nodes"
    wait_until(lambda: waiting in first.output(), "node 0 done")
    assert first.process.poll() is None
    assert "server-0" in first.pids()
    end_worker(tmp_path, 2)
    assert first.wait() == 0, first.output()
    assert second.wait() == 0, second.output()
    first.wait_for_no_child()


@pytest.mark.parametrize("failing", [0, 2])
def test_failure_on_one_node_ends_the_job_on_all(
    start_node: StartNode, tmp_path: Path, failing: int
) -> None:
    launchers = [start_node(0), start_node(1)]
    launchers[0].wait_for_pids(5)
    wait_until(lambda: have_met(launchers), "nodes joined")
    end_worker(tmp_path, failing, code=7)
    assert [launcher.wait() for launcher in launchers] == [7, 7]
    culprit = 0 if failing == 0 else 1
    other = launchers[1 - culprit].output()
    assert f"node {culprit} (127.0.0.1): worker {failing} (pid" in other
    launchers[0].wait_for_no_child()


def test_signal_to_one_launcher_ends_the_job_on_all(start_node: StartNode) -> None:
    first, second = start_node(0), start_node(1)
    first.wait_for_pids(5)
    wait_until(lambda: have_met([first, second]), "nodes joined")
    second.send(signal.SIGINT)
    assert second.wait() == 130
    assert first.wait() == 130
    assert "node 1 (127.0.0.1): launcher received SIGINT" in first.output()
    first.wait_for_no_child()


@pytest.mark.parametrize("killed", [0, 1])
def test_lost_node_ends_the_job(start_node: StartNode, killed: int) -> None:
    launchers = [start_node(0), start_node(1)]
    launchers[0].wait_for_pids(5)
    wait_until(lambda: have_met(launchers), "nodes joined")
    launchers[killed].process.kill()
    assert launchers[1 - killed].wait() == 1
    assert f"node {killed} (127.0.0.1" in launchers[1 - killed].output()
    assert "is lost" in launchers[1 - killed].output()
    launchers[0].wait_for_no_child()


def test_node_that_never_comes_is_named(start_node: StartNode) -> None:
    first = start_node(0, "--join-seconds", "1")
    assert first.wait() == 1
    assert "not joined within 1 s: node 1 (127.0.0.1)" in first.output()
    first.wait_for_no_child()


@pytest.mark.job
def test_hub_that_never_comes_is_named(start_node: StartNode) -> None:
    second = start_node(1, "--join-seconds", "1")
    assert second.wait() == 1
    assert "node 0 (127.0.0.1, launcher's port" in second.output()
    assert "unreachable for 1 s" in second.output()
    second.wait_for_no_child()


@pytest.mark.job
def test_nodes_started_with_other_settings_are_refused(start_node: StartNode) -> None:
    first = start_node(0)
    second = start_node(1, "--workers", "4")
    assert second.wait() == 2
    assert "4 workers on 127.0.0.1,127.0.0.1" in second.output()
    assert "but node 0 was started for 2 servers and 3 workers" in second.output()
    assert first.process.poll() is None
    first.send(signal.SIGTERM)
    assert first.wait() == 143
    first.wait_for_no_child()


@pytest.mark.job
def test_node_with_another_key_is_refused(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start_node(0)
    wait_until(lambda: "server 0 started" in first.output(), "node 0 up")
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", "another key than that of node 0")
    second = start_node(1)
    assert second.wait() == 1
    assert "has a different job key" in second.output()
    assert first.process.poll() is None
    first.send(signal.SIGTERM)
    assert first.wait() == 143
    first.wait_for_no_child()


def test_several_nodes_need_a_key(start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARSEFLEET_JOB_KEY")
    launcher = start_node(0)
    assert launcher.wait() == 1
    assert "set SPARSEFLEET_JOB_KEY to the same text everywhere" in launcher.output()
    assert not os.listdir(launcher.directory / "pids")


def test_job_without_servers_on_several_machines_warns(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    warning = "neither encrypts nor authenticates"
    # The second node is never contacted: it is the one that connects.
    words = ("--nodes", "127.0.0.1,192.0.2.1", "--servers", "0", "--workers", "2")
    exposed = start_node(0, *words, "--join-seconds", "1")
    assert exposed.wait() == 1
    assert warning in exposed.output()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "wg0")
    protected = start_node(0, *words, "--join-seconds", "1")
    assert protected.wait() == 1
    assert warning not in protected.output()
