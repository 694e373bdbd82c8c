"""`sparsefleet launch` restarts the process that died, and nothing else."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess, wait_until

Start = Callable[..., LaunchProcess]

# Worker 0 pushes until it is asked to stop, then checks that each push has added exactly 1.
LEDGER = """\
import os, pathlib, sys
import numpy as np
from sparsefleet import RemoteStore, TableSpec, fleet, optim
from sparsefleet.store import Constant
fleet.init()
if fleet.is_server():
    fleet.run_server()
    sys.exit()
keys = np.arange(1000)
with RemoteStore(fleet.server_endpoints(), name="worker-0") as store:
    store.define(TableSpec(name="t", dim=2, optimizer=optim.SGD(lr=1.0), initializer=Constant(0.0)))
    pushes = 0
    while not os.path.exists("enough"):
        store.push("t", keys, np.full((1000, 2), -1.0, np.float32))
        pushes += 1
        pathlib.Path("draft").write_text(str(pushes))
        os.replace("draft", "pushes")
    rows = store.pull("t", keys, train=False)
    assert (rows == pushes).all(), (rows, pushes)
"""

# Servers wait until they are stopped; workers do what `do-<index>-<incarnation>` says.
OBEDIENT = """\
import os, pathlib, signal, sys, time
role, index = os.environ["SPARSEFLEET_ROLE"], os.environ["SPARSEFLEET_INDEX"]
incarnation = os.environ["SPARSEFLEET_INCARNATION"]
pathlib.Path("pids", f"{role}-{index}-{incarnation}").write_text(f"{os.getpid()}\\n")
print("incarnation", incarnation, "of job", os.environ["SPARSEFLEET_JOB_ID"], flush=True)
order = f"do-{index}-{incarnation}"
while role == "server" or not os.path.exists(order):
    time.sleep(0.01)
word = pathlib.Path(order).read_text()
if word.startswith("SIG"):
    os.kill(os.getpid(), signal.Signals[word])
sys.exit(int(word))
"""


# Takes longer to return than the others wait for it.
SLOW_TO_RETURN = """\
import os, pathlib, signal, sys, time
if os.environ["SPARSEFLEET_INCARNATION"] != "0":
    time.sleep(9)
import torch
from sparsefleet import Trainer, TrainerConfig, fleet, optim
from sparsefleet.nn import SparseEmbeddingBag
fleet.init()
if fleet.is_server():
    fleet.run_server()
    sys.exit()
def batches():
    for number in range(20):
        if (fleet.worker_index(), number, os.environ["SPARSEFLEET_INCARNATION"]) == (1, 5, "0"):
            os.kill(os.getpid(), signal.SIGKILL)
        yield torch.arange(4).reshape(2, 2), torch.ones(2)
model = torch.nn.Sequential(SparseEmbeddingBag("t", 4), torch.nn.Linear(4, 1), torch.nn.Flatten(0))
loss = torch.nn.BCEWithLogitsLoss()
with Trainer(model, loss, optim.SGD(lr=0.1), mode="sync", config=TrainerConfig(quiet=True)) as t:
    t.fit(batches)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[LaunchProcess] = []

    def begin(script: str, *words: str) -> LaunchProcess:
        (tmp_path / "train.py").write_text(script)
        started.append(LaunchProcess(tmp_path, *words, "train.py"))
        return started[-1]

    yield begin
    for launcher in started:
        launcher.close()


def await_in(launcher: LaunchProcess, condition: Callable[[], bool], what: str) -> None:
    """Wait for the condition while the launcher runs."""
    wait_until(lambda: condition() or launcher.process.poll() is not None, what)
    assert condition(), launcher.output()


def pids_of(launcher: LaunchProcess, name: str) -> list[int]:
    """Return the pids of all incarnations so far, as reported by the launcher."""
    pattern = rf"{name} (?:started.*?, pid (\d+)|\(pid.*restarted alone, pid (\d+))"
    return [int(a or b) for a, b in re.findall(pattern, launcher.output())]


def order(directory: Path, index: int, incarnation: int, word: str) -> None:
    draft = directory / "order"
    draft.write_text(word)
    draft.rename(directory / f"do-{index}-{incarnation}")


@pytest.mark.parametrize("words", [("--native-servers",), ()], ids=["native", "script"])
def test_killed_server_comes_back_alone_with_all_it_had_acknowledged(
    start: Start, tmp_path: Path, words: tuple[str, ...]
) -> None:
    launcher = start(LEDGER, "--servers", "2", *words)
    for kill in range(2):
        before = (tmp_path / "pushes").read_text() if kill else "0"
        await_in(launcher, lambda b=before: _pushes(tmp_path) > int(b) + 5, "pushes between kills")
        os.kill(pids_of(launcher, "server 1")[-1], signal.SIGKILL)
        await_in(launcher, lambda k=kill: len(pids_of(launcher, "server 1")) == k + 2, "restarted")
    after = _pushes(tmp_path)
    await_in(launcher, lambda: _pushes(tmp_path) > after + 5, "pushes after the kills")
    (tmp_path / "enough").touch()
    assert launcher.wait() == 0, launcher.output() + launcher.log("workerlog.0")
    output = launcher.output()
    assert "was killed by SIGKILL" in output
    assert "restarted alone: server 1: 2" in output
    assert len(pids_of(launcher, "worker 0")) == len(pids_of(launcher, "server 0")) == 1
    assert "records replayed" in launcher.log("serverlog.1")
    assert not [path for path in (tmp_path / "logs").iterdir() if path.is_dir()]


def _pushes(directory: Path) -> int:
    try:
        return int((directory / "pushes").read_text())
    except FileNotFoundError:
        return 0


@pytest.mark.job
def test_others_wait_for_a_worker_as_long_as_the_launcher_restarts_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEFLEET_FAILOVER_WAIT_S", "6")
    launcher = start(SLOW_TO_RETURN, "--workers", "2", "--servers", "2", "--native-servers")
    assert launcher.wait() == 0, launcher.output() + launcher.log("workerlog.0")
    assert "restarted alone: worker 1: 1" in launcher.output()


def test_without_durability_a_killed_server_ends_the_job(start: Start, tmp_path: Path) -> None:
    launcher = start(LEDGER, "--native-servers", "--durability", "off")
    await_in(launcher, lambda: _pushes(tmp_path) > 5, "pushes")
    os.kill(pids_of(launcher, "server 0")[0], signal.SIGKILL)
    assert launcher.wait() == 137
    assert "restarted" not in launcher.output()


def test_killed_worker_comes_back_under_its_rank(start: Start, tmp_path: Path) -> None:
    launcher = start(OBEDIENT, "--workers", "2", "--restart", "killed")
    launcher.wait_for_pids(3)
    order(tmp_path, 1, 0, "SIGKILL")
    await_in(launcher, lambda: "worker-1-1" in launcher.pids(), "restarted")
    order(tmp_path, 1, 1, "SIGSEGV")
    await_in(launcher, lambda: "worker-1-2" in launcher.pids(), "restarted again")
    for index, incarnation in ((0, 0), (1, 2)):
        order(tmp_path, index, incarnation, "0")
    assert launcher.wait() == 0, launcher.output()
    lines = launcher.log("workerlog.1").splitlines()
    jobs = {line.split()[-1] for line in lines}
    assert [line.split()[1] for line in lines] == ["0", "1", "2"]
    assert len(jobs) == 1
    assert "worker-0-1" not in launcher.pids()
    launcher.wait_for_no_child()


def test_worker_that_fails_by_itself_ends_the_job_unless_asked(
    start: Start, tmp_path: Path
) -> None:
    launcher = start(OBEDIENT, "--workers", "2", "--restart", "killed")
    launcher.wait_for_pids(3)
    order(tmp_path, 1, 0, "3")
    assert launcher.wait() == 3
    assert "restarted" not in launcher.output()


def test_crash_loop_ends_with_the_name_of_the_process(start: Start, tmp_path: Path) -> None:
    for incarnation in range(3):
        order(tmp_path, 1, incarnation, "4")
    launcher = start(OBEDIENT, "--workers", "2", "--max-restarts", "9", "--restart", "failed")
    assert launcher.wait() == 4
    output = launcher.output()
    assert output.count("restarted alone, pid") == 2
    assert "worker 1 (pid" in output
    assert "not restarted: it failed 3 times in a row within 10 s of its start" in output
    launcher.wait_for_no_child()


def test_restarts_of_a_process_are_limited(start: Start, tmp_path: Path) -> None:
    for incarnation in range(3):
        order(tmp_path, 0, incarnation, "SIGKILL")
    launcher = start(OBEDIENT, "--restart", "killed", "--max-restarts", "2")
    assert launcher.wait() == 137
    assert launcher.output().count("restarted alone, pid") == 2
    assert (
        "it was restarted 2 times within 300 s, which is the limit set by --max-restarts"
        in launcher.output()
    )
    launcher.wait_for_no_child()


def test_servers_hear_at_once_that_a_worker_has_ended(start: Start, tmp_path: Path) -> None:
    script = """\
import os, pathlib, signal
from sparsefleet import RemoteStore, fleet
from sparsefleet.errors import PeerLostError
from sparsefleet.store import RoundMember
fleet.init()
rank = fleet.worker_index()
member = RoundMember(group="both", rank=rank, size=2)
with RemoteStore(fleet.server_endpoints(), name=f"worker-{rank}") as store:
    store.advance_clock(member, 1, bound=0)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        store.advance_clock(member, 2, bound=0, timeout_s=200.0)
    except PeerLostError as error:
        assert "rank 1" in str(error), error
        pathlib.Path("seen").touch()
"""
    launcher = start(script, "--native-servers", "--workers", "2", "--keep-going")
    assert launcher.wait() == 137
    assert "data from worker 1 was left out" in launcher.output()
    assert (tmp_path / "seen").exists(), launcher.output() + launcher.log("workerlog.0")
    assert "its launcher reports that it has ended" in launcher.log("serverlog.0")


def test_sigterm_gives_workers_notice_while_servers_still_run(start: Start, tmp_path: Path) -> None:
    script = """\
import os, pathlib, signal, sys, time
role, index = os.environ["SPARSEFLEET_ROLE"], os.environ["SPARSEFLEET_INDEX"]
def hand_over(number, frame):
    if role == "worker":
        assert os.path.exists(os.environ["SPARSEFLEET_NOTICE_FILE"])
        os.kill(int(pathlib.Path("pids", "server-0").read_text()), 0)
        time.sleep(0.3)
        assert not os.path.exists("server-ended")
        sys.exit(75)
    pathlib.Path("server-ended").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, hand_over)
pathlib.Path("pids", f"{role}-{index}").write_text(f"{os.getpid()}\\n")
while True:
    time.sleep(60)
"""
    launcher = start(script, "--workers", "2")
    launcher.wait_for_pids(3)
    launcher.send(signal.SIGTERM)
    assert launcher.wait() == 75, launcher.output()
    assert "the job's state is saved; start the job elsewhere" in launcher.output()
    assert (tmp_path / "server-ended").exists()
    launcher.wait_for_no_child()


@pytest.mark.job
def test_each_node_restarts_its_own_processes(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", "the key of the job on two nodes")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    words = ("--nodes", "127.0.0.1,127.0.0.1", "--start-port", port, "--workers", "2")
    nodes = [start(OBEDIENT, *words, "--node-rank", str(k), "--restart", "killed") for k in (0, 1)]
    nodes[0].wait_for_pids(3)
    order(tmp_path, 1, 0, "SIGKILL")
    await_in(nodes[1], lambda: "worker-1-1" in nodes[1].pids(), "restarted")
    order(tmp_path, 0, 0, "0")
    order(tmp_path, 1, 1, "0")
    assert [node.wait() for node in nodes] == [0, 0], [node.output() for node in nodes]
    assert "restarted alone" in nodes[1].output()
    assert "restarted alone" not in nodes[0].output()
