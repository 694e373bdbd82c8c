"""`python -m sparsefleet.distributed.launch_ps`, Fluid's launcher."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess
from tests.support.ports import free_ports

Start = Callable[..., LaunchProcess]

SCRIPT = """\
import json, os, pathlib, sys, time
server = os.environ["TRAINING_ROLE"] == "PSERVER"
name = os.environ["PADDLE_PORT"] if server else os.environ["PADDLE_TRAINER_ID"]
pathlib.Path("pids", name).write_text(f"{os.getpid()}\\n")
pathlib.Path(f"env-{name}").write_text(json.dumps(dict(os.environ)))
while server:
    time.sleep(60)
print(sys.argv[1:])
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "train.py").write_text(SCRIPT)
    started: list[LaunchProcess] = []

    def begin(*words: str) -> LaunchProcess:
        command = ("-m", "sparsefleet.distributed.launch_ps")
        started.append(LaunchProcess(tmp_path, *words, command=command))
        return started[-1]

    yield begin
    for launcher in started:
        launcher.close()


def test_endpoints_and_roles(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    endpoints = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    flags = ("--worker_num", "3", "--endpoints", endpoints, "--log_dir", "my_logs")
    unused = ("--cluster_node_ips", "127.0.0.1", "--node_ip", "127.0.0.1")
    launcher = start(*flags, *unused, "train.py", "--lr", "0.1")
    assert launcher.wait() == 0, launcher.output()
    assert "worker_num: 3" in launcher.output()
    assert (tmp_path / "my_logs" / "workerlog.2").read_text() == "['--lr', '0.1']\n"
    assert (tmp_path / "my_logs" / "serverlog.1").exists()
    for index in range(3):
        found = json.loads((tmp_path / f"env-{index}").read_text())
        assert found["PADDLE_PSERVERS_IP_PORT_LIST"] == endpoints
        assert found["PADDLE_TRAINERS_NUM"] == "3"
        assert "http_proxy" not in found
        assert "POD_IP" not in found
    launcher.wait_for_no_child()


def test_start_port_is_the_first_servers(start: Start, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    flags = ("--worker_num", "1", "--server_num", "1", "--start_port", str(port))
    launcher = start(*flags, "--print_config", "False", "train.py")
    assert launcher.wait() == 0, launcher.output()
    assert "worker_num" not in launcher.output()
    found = json.loads((tmp_path / "env-0").read_text())
    assert found["PADDLE_PSERVERS_IP_PORT_LIST"] == f"127.0.0.1:{port}"


def test_taken_port_is_named(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        launcher = start("--start_port", str(port), "--server_num", "1", "train.py")
        assert launcher.wait() == 1
    assert f"launch_ps: error: port {port} on 127.0.0.1 is in use" in launcher.output()


def test_empty_print_config_starts_nothing(start: Start) -> None:
    launcher = start("--print_config", "", "train.py")
    assert launcher.wait() == 0
    assert "nothing is started" in launcher.output()
    assert not launcher.pids()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.py",), "script 'missing.py' does not exist"),
        (("--worker_num", "0", "train.py"), "num_workers"),
        (("--endpoints", "here", "train.py"), "endpoint 'here' must be HOST:PORT"),
        (("--endpoints", "a:1", "--server_num", "2", "train.py"), "one entry per server (2)"),
        ((), "training_script"),
    ],
)
def test_wrong_command_line_exits_2(start: Start, words: tuple[str, ...], message: str) -> None:
    launcher = start(*words)
    assert launcher.wait() == 2
    assert message in launcher.output()
