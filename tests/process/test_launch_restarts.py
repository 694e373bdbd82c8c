"""`sparsefleet launch --max-restarts`, and jobs without servers. The script imports little."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess, wait_until
from tests.support.ports import free_ports

Start = Callable[..., LaunchProcess]

# Each process reports its role and number of starts; worker 1 fails as often as configured.
SCRIPT = """\
import os, pathlib, sys, time
role, index = os.environ["SPARSEFLEET_ROLE"], int(os.environ["SPARSEFLEET_INDEX"])
restarts = int(os.environ["SPARSEFLEET_RESTARTS"])
pathlib.Path("pids", f"{role}-{index}-{restarts}").write_text(f"{os.getpid()}\\n")
assert os.environ["SPARSEFLEET_JOB_ID"].endswith(f"-{restarts}")
assert os.environ["SPARSEFLEET_INCARNATION"] == "0"
print(f"start {restarts} of {role} {index}", flush=True)
def others_have_begun():
    servers = ["server-0"] if os.environ["SPARSEFLEET_SERVERS"] else []
    names = ["worker-0", "worker-1", *servers]
    return all(os.path.exists(f"pids/{name}-{restarts}") for name in names)
while not others_have_begun():
    time.sleep(0.01)
if role == "worker" and index == 1 and restarts < int(sys.argv[1]):
    sys.exit(3 + restarts)
while role == "server" or restarts < int(sys.argv[1]):
    time.sleep(0.01)
pathlib.Path(f"done-{index}").write_text(os.environ["SPARSEFLEET_MEETING_POINT"])
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "train.py").write_text(SCRIPT)
    started: list[LaunchProcess] = []

    def begin(*words: str, failures: int) -> LaunchProcess:
        started.append(LaunchProcess(tmp_path, *words, "train.py", str(failures)))
        return started[-1]

    yield begin
    for launcher in started:
        launcher.close()


def test_job_is_restarted_with_its_servers_until_it_succeeds(start: Start, tmp_path: Path) -> None:
    words = (
        "--servers",
        "1",
        "--workers",
        "2",
        "--restart",
        "all",
        "--max-restarts",
        "3",
        "--quiet",
    )
    launcher = start(*words, failures=2)
    assert launcher.wait() == 0, launcher.output()
    output = launcher.output()
    assert "worker 1 (pid" in output
    assert "exited with code 3" in output
    assert "restart 1 of 3: restarting all processes of the job" in output
    assert "restart 2 of 3" in output
    assert "restart 3" not in output
    assert sorted(launcher.pids()) == sorted(
        f"{name}-{restarts}"
        for name in ("server-0", "worker-0", "worker-1")
        for restarts in range(3)
    )
    assert launcher.log("workerlog.1").splitlines() == [f"start {k} of worker 1" for k in range(3)]
    launcher.wait_for_no_child()
    met = {(tmp_path / f"done-{index}").read_text() for index in range(2)}
    assert len(met) == 1
    assert met.pop().startswith("127.0.0.1:")


def test_job_without_servers_ends_when_restarts_are_used_up(start: Start) -> None:
    words = ("--servers", "0", "--workers", "2", "--max-restarts", "1", "--show", "worker.1")
    launcher = start(*words, failures=9)
    assert launcher.wait() == 4, "the code of the last failure"
    output = launcher.output()
    assert output.count("restarting all processes of the job") == 1
    for restarts in range(2):
        assert output.splitlines().count(f"start {restarts} of worker 1") == 1
    assert "server 0" not in output
    launcher.wait_for_no_child()


def test_nodes_are_restarted_together(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", "the key of the job on two nodes")
    port = str(free_ports(4)[0])
    shape = ("--nodes", "127.0.0.1,127.0.0.1", "--start-port", port, "--servers", "0")
    words = (*shape, "--workers", "2", "--max-restarts", "1", "--quiet")
    nodes = [start(*words, "--node-rank", str(rank), failures=1) for rank in range(2)]
    assert [node.wait() for node in nodes] == [0, 0], [node.output() for node in nodes]
    for node in nodes:
        assert "node 1 (127.0.0.1): worker 1" in node.output() or node is nodes[1]
        assert "restart 1 of 1" in node.output()
    assert sorted(nodes[0].pids()) == ["worker-0-0", "worker-0-1", "worker-1-0", "worker-1-1"]


def test_signal_ends_a_job_that_may_be_restarted(start: Start) -> None:
    launcher = start("--servers", "0", "--workers", "2", "--max-restarts", "5", failures=9)
    wait_until(lambda: "worker-1-1" in launcher.pids(), "restarted once")
    launcher.send(signal.SIGTERM)
    assert launcher.wait() == 143
    launcher.wait_for_no_child()
