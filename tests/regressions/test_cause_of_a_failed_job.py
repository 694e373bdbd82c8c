"""The launcher's first line names the process that caused a failure, not the one that noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess

PRELUDE = """\
import os, pathlib, signal, sys, time
class PeerLostError(Exception):
    pass
role, index = os.environ["SPARSEFLEET_ROLE"], os.environ["SPARSEFLEET_INDEX"]
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
path = pathlib.Path("pids", f"{role}-{index}.new")
path.write_text(str(os.getpid()))
path.rename(f"pids/{role}-{index}")
"""

Start = Callable[..., LaunchProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[LaunchProcess] = []

    def begin(script: str, *words: str) -> LaunchProcess:
        (tmp_path / "train.py").write_text(PRELUDE + script)
        started.append(LaunchProcess(tmp_path, "--quiet", *words, "train.py"))
        return started[-1]

    yield begin
    for launcher in started:
        launcher.close()


def complaint(launcher: LaunchProcess) -> list[str]:
    lines = launcher.output().splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("sparsefleet launch:"))
    return lines[begin:]


def test_the_error_of_the_worker_that_failed_comes_before_those_who_lost_it(start: Start) -> None:
    script = """
if role == "server":
    signal.pause()
if index == "0":
    raise PeerLostError("worker 1 has stopped")
wait_for("logs/workerlog.0")
while "PeerLostError" not in pathlib.Path("logs/workerlog.0").read_text():
    time.sleep(0.01)
time.sleep(0.5)  # worker 0 is seen to have ended by now
raise ValueError("bad batch 17")
"""
    launcher = start(script, "--workers", "2")
    assert launcher.wait() == 1
    first, second, *_ = complaint(launcher)
    assert "worker 1 (pid" in first
    assert first.endswith(": ValueError: bad batch 17")
    assert second.startswith("  then worker 0 exited with code 1: ")
    assert second.endswith("PeerLostError: worker 1 has stopped")


def test_a_suspended_server_is_named_and_not_the_worker_that_gave_up_on_it(start: Start) -> None:
    script = """
if role == "server":
    if index == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    signal.pause()
wait_for("pids/server-1")
server = pathlib.Path("pids/server-1").read_text()
while "State:\\tT" not in pathlib.Path("/proc", server, "status").read_text():
    time.sleep(0.01)
raise PeerLostError("server 1 (127.0.0.1:9) has not answered for 30 s")
"""
    launcher = start(script, "--servers", "2", "--grace-seconds", "1")
    assert launcher.wait() == 1
    first, second, *_ = complaint(launcher)
    assert "server 1 (pid" in first
    assert "suspended (SIGSTOP)" in first
    assert second.startswith("  then worker 0 exited with code 1: ")


def test_a_killed_server_is_named_even_if_a_worker_ended_first(start: Start) -> None:
    script = """
if role == "server":
    wait_for("logs/workerlog.0")
    while "PeerLostError" not in pathlib.Path("logs/workerlog.0").read_text():
        time.sleep(0.01)
    time.sleep(0.5)  # the worker is seen to have ended by now
    os.kill(os.getpid(), signal.SIGKILL)
raise PeerLostError("server 0 is gone")
"""
    launcher = start(script)
    assert launcher.wait() == 137
    assert "server 0 (pid" in complaint(launcher)[0]


def test_a_worker_that_lost_somebody_unknown_is_named_with_its_error(start: Start) -> None:
    script = """
if role == "server":
    signal.pause()
raise PeerLostError("server 7 (10.0.0.7:9100) is gone")
"""
    launcher = start(script, "--grace-seconds", "1")
    assert launcher.wait() == 1
    first = complaint(launcher)[0]
    assert "worker 0 (pid" in first
    assert first.endswith("PeerLostError: server 7 (10.0.0.7:9100) is gone")


def test_an_error_handled_long_ago_does_not_make_a_failure_a_consequence(start: Start) -> None:
    script = """
if role == "server":
    signal.pause()
if index == "1":
    wait_for("ended")
    time.sleep(0.5)  # worker 0 is seen to have ended by now
    raise ValueError("a worker is missing")
import traceback
try:
    raise ConnectionResetError("a client is gone")
except ConnectionResetError:
    traceback.print_exc()
for step in range(15_000):
    print("step", step)
sys.stdout.flush()
pathlib.Path("ended").touch()
sys.exit("no label column")
"""
    launcher = start(script, "--workers", "2")
    assert launcher.wait() == 1
    first = complaint(launcher)[0]
    assert "worker 0 (pid" in first
    assert "; its log ends with 'no label column'" in first


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ('sys.exit("config is missing")', "; its log ends with 'config is missing'"),
        ('raise ExceptionGroup("two", [ValueError(1)])', ": ExceptionGroup: two (1 sub-exception)"),
        ('raise ValueError("x" * 100_000)', f": ValueError: {'x' * 288}..."),
        (
            'class Odd(Exception): __module__ = "my.package"\nraise Odd("a reason")',
            ": my.package.Odd: a reason",
        ),
        (
            "import atexit\n"
            'atexit.register(print, "\\n".join(f"closing {i}" for i in range(5000)))\n'
            'raise ValueError("a reason")',
            ": ValueError: a reason",
        ),
        (
            "import traceback\n"
            'try: raise ConnectionResetError("a client is gone")\n'
            "except ConnectionResetError: traceback.print_exc()\n"
            'print("\\n".join(f"step {i}" for i in range(15_000)), flush=True)\n'
            'sys.exit("no label column")',
            "; its log ends with 'no label column'; last error, 15001 lines earlier: "
            "ConnectionResetError: a client is gone",
        ),
    ],
)
def test_the_reason_is_named_however_it_was_raised(start: Start, script: str, reason: str) -> None:
    launcher = start(f"if role == 'server':\n    signal.pause()\n{script}\n")
    assert launcher.wait() == 1
    first = complaint(launcher)[0]
    assert "worker 0 (pid" in first
    assert first.endswith(reason), first
