"""`python -m paddle.distributed.launch`, Fluid's launcher of collective jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess
from tests.support.ports import free_ports

Start = Callable[..., LaunchProcess]

SCRIPT = """\
import json, os, pathlib, sys, time
index = os.environ["PADDLE_TRAINER_ID"]
pathlib.Path("pids", index).write_text(f"{os.getpid()}\\n")
pathlib.Path(f"env-{index}").write_text(json.dumps(dict(os.environ)))
print("worker", index, *sys.argv[1:], flush=True)
while not all(os.path.exists(f"env-{k}") for k in range(int(os.environ["PADDLE_TRAINERS_NUM"]))):
    time.sleep(0.01)
while "hang" in sys.argv and index == "0":
    time.sleep(60)
sys.exit(7 if "hang" in sys.argv else 0)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "train.py").write_text(SCRIPT)
    started: list[LaunchProcess] = []

    def begin(*words: str, under: str = "sparsefleet.distributed.launch") -> LaunchProcess:
        command = ("-m", *under.split())
        started.append(LaunchProcess(tmp_path, *words, command=command))
        return started[-1]

    yield begin
    for launcher in started:
        launcher.close()


def told(tmp_path: Path, count: int) -> list[dict[str, str]]:
    return [json.loads((tmp_path / f"env-{index}").read_text()) for index in range(count)]


def test_one_process_per_gpu_gets_its_role_as_in_fluid(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    words = ("--selected_gpus", "4,6", "--log_dir", "logs", "train.py", "--lr", "0.1")
    launcher = start(*words, under="sparsefleet.as_paddle -m paddle.distributed.launch")
    assert launcher.wait() == 0, launcher.output()
    assert "selected_gpus: 4,6" in launcher.output()
    found = told(tmp_path, 2)
    places = found[0]["PADDLE_TRAINER_ENDPOINTS"].split(",")
    for index, variables in enumerate(found):
        assert variables["FLAGS_selected_gpus"] == ("0", "2")[index], "places among the visible"
        assert variables["PADDLE_CURRENT_ENDPOINT"] == places[index]
        assert variables["PADDLE_TRAINERS_NUM"] == "2"
        assert variables["SPARSEFLEET_MEETING_POINT"] == places[0]
        assert "http_proxy" not in variables
        assert launcher.log(f"workerlog.{index}") == f"worker {index} --lr 0.1\n"
    again = start("--selected_gpus", "4", "--log_dir", "logs", "train.py")
    assert again.wait() == 0, again.output()
    assert again.log("workerlog.0") == "worker 0 --lr 0.1\nworker 0\n", "logs are continued"


def test_without_a_folder_for_logs_output_is_shown_and_a_failure_ends_all(start: Start) -> None:
    port = free_ports(2)[0]
    launcher = start("--selected_gpus", "0,1", "--started_port", str(port), "train.py", "hang")
    assert launcher.wait() == 7
    lines = launcher.output().splitlines()
    assert "worker 0 hang" in lines
    assert "worker 1 hang" in lines
    assert not (launcher.directory / "logs").exists()
    launcher.wait_for_no_child()


def test_wrong_flags_are_reported(start: Start) -> None:
    launcher = start("--node_ip", "10.0.0.9", "--selected_gpus", "0", "train.py")
    assert launcher.wait() == 2
    assert "--node_ip 10.0.0.9 is not in --cluster_node_ips 127.0.0.1" in launcher.output()
