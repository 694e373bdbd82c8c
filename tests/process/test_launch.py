"""`sparsefleet launch` with real processes; the scripts import nothing heavy."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.launch_process import LaunchProcess, is_alive, wait_until

Start = Callable[..., LaunchProcess]

# Every script starts with this: it reports its role.
PRELUDE = """\
import json, os, pathlib, signal, subprocess, sys, time
role, index = os.environ["SPARSEFLEET_ROLE"], os.environ["SPARSEFLEET_INDEX"]
def say(name, pid):
    path = pathlib.Path("pids", name)
    path.write_text(f"{pid}\\n")
def hang():
    while True:
        time.sleep(60)
if role == "server":
    print("server up")
say(f"{role}-{index}", os.getpid())
if role == "server":
    hang()
"""
WAIT_FOR_SERVERS = """
for number in range(len(os.environ["SPARSEFLEET_SERVERS"].split(","))):
    while not os.path.exists(f"pids/server-{number}"):
        time.sleep(0.01)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start launchers of a script given as text; all end with the test."""
    started: list[LaunchProcess] = []

    def begin(script: str, *words: str, after: tuple[str, ...] = ()) -> LaunchProcess:
        (tmp_path / "train.py").write_text(PRELUDE + script)
        launcher = LaunchProcess(tmp_path, *words, "train.py", *after)
        started.append(launcher)
        return launcher

    yield begin
    for launcher in started:
        launcher.close()


def test_every_process_gets_its_role_in_both_families(start: Start, tmp_path: Path) -> None:
    script = (
        WAIT_FOR_SERVERS
        + """
print("worker prints")
print("to stderr", file=sys.stderr)
path = os.environ["SPARSEFLEET_JOB_KEY_FILE"]
found = dict(os.environ, KEY=open(path).read(), MODE=oct(os.stat(path).st_mode), ARGS=sys.argv[1:])
pathlib.Path(f"env-{index}").write_text(json.dumps(found))
"""
    )
    words = ("--servers", "2", "--workers", "2", "--env", "COLOUR=blue", "--transport", "plain")
    launcher = start(script, *words, after=("--lr", "0.1", "--servers"))
    assert launcher.wait() == 0, launcher.output()
    seen = [json.loads((tmp_path / f"env-{index}").read_text()) for index in range(2)]
    for index, found in enumerate(seen):
        assert found["SPARSEFLEET_WORKERS"] == found["PADDLE_TRAINERS_NUM"] == "2"
        assert found["SPARSEFLEET_SERVERS"] == found["PADDLE_PSERVERS_IP_PORT_LIST"]
        assert found["PADDLE_TRAINER_ID"] == str(index)
        assert found["TRAINING_ROLE"] == "TRAINER"
        assert found["SPARSEFLEET_TRANSPORT"] == "plain"
        assert found["PYTHONUNBUFFERED"] == "1"
        assert found["COLOUR"] == "blue"
        assert found["ARGS"] == ["--lr", "0.1", "--servers"]
        assert found["MODE"].endswith("600")
        assert len(found["KEY"].strip()) == 64
    assert seen[0]["KEY"] == seen[1]["KEY"]
    assert not Path(seen[0]["SPARSEFLEET_JOB_KEY_FILE"]).exists()
    servers = seen[0]["SPARSEFLEET_SERVERS"].split(",")
    assert len(set(servers)) == 2
    assert all(server.startswith("127.0.0.1:") for server in servers)
    assert launcher.log("workerlog.1") == "worker prints\nto stderr\n"
    assert launcher.log("serverlog.0") == "server up\n"
    launcher.wait_for_no_child()


def test_servers_know_their_place_and_can_listen_there(tmp_path: Path) -> None:
    script = """\
import os, socket, time
if os.environ["TRAINING_ROLE"] == "PSERVER":
    own = (os.environ["POD_IP"], int(os.environ["PADDLE_PORT"]))
    listener = socket.create_server(own)
    text = f"{os.environ['PADDLE_PSERVER_ID']} {own[0]}:{own[1]}\\n"
    while True:
        listener.accept()[0].sendall(text.encode())

def connect(host, port):
    while True:
        try:
            return socket.create_connection((host, int(port)))
        except ConnectionRefusedError:
            time.sleep(0.01)

for number, endpoint in enumerate(os.environ["SPARSEFLEET_SERVERS"].split(",")):
    with connect(*endpoint.split(":")) as connection, connection.makefile() as lines:
        assert lines.readline() == f"{number} {endpoint}\\n"
"""
    (tmp_path / "train.py").write_text(script)
    launcher = LaunchProcess(tmp_path, "--servers", "3", "train.py")
    try:
        assert launcher.wait() == 0, launcher.output()
    finally:
        launcher.close()


def test_failing_worker_ends_the_job_with_its_code_and_last_lines(start: Start) -> None:
    script = """
if index == "1":
    for number in range(100):
        print("line", number)
    sys.exit(3)
hang()
"""
    launcher = start(script, "--servers", "1", "--workers", "3")
    assert launcher.wait() == 3
    output = launcher.output()
    assert "worker 1 (pid" in output
    assert "exited with code 3" in output
    assert os.path.join("logs", "workerlog.1") in output
    assert "| line 99\n" in output
    assert "| line 80\n" in output
    assert "| line 79\n" not in output
    launcher.wait_for_no_child()


def test_traceback_of_an_exception_is_shown(start: Start) -> None:
    launcher = start("raise ValueError('bad batch 17')")
    assert launcher.wait() == 1
    assert "| ValueError: bad batch 17" in launcher.output()
    launcher.wait_for_no_child()


def test_worker_killed_by_a_signal_gives_128_plus_its_number(start: Start) -> None:
    launcher = start("hang()", "--workers", "2", "--max-restarts", "0")
    pids = launcher.wait_for_pids(3)
    os.kill(pids["worker-1"], signal.SIGKILL)
    assert launcher.wait() == 137
    assert "was killed by SIGKILL" in launcher.output()
    launcher.wait_for_no_child()


def test_dead_server_ends_the_job(start: Start) -> None:
    launcher = start("hang()", "--servers", "2", "--keep-going", "--durability", "off")
    pids = launcher.wait_for_pids(3)
    os.kill(pids["server-1"], signal.SIGKILL)
    assert launcher.wait() == 137
    assert "server 1 (pid" in launcher.output()
    launcher.wait_for_no_child()


def test_keep_going_finishes_without_the_dead_worker(start: Start) -> None:
    script = """
if index == "0":
    sys.exit(5)
while not os.path.exists("go"):
    time.sleep(0.01)
print("finished")
"""
    launcher = start(script, "--workers", "2", "--keep-going")
    wait_until(lambda: "worker 0 exited with code 5" in launcher.output(), "worker 0 named")
    assert launcher.process.poll() is None
    (launcher.directory / "go").touch()
    assert launcher.wait() == 0, launcher.output()
    assert "done, with losses: worker 0 exited with code 5" in launcher.output()
    assert "finished" in launcher.log("workerlog.1")
    launcher.wait_for_no_child()


def test_keep_going_without_any_worker_left_fails(start: Start) -> None:
    launcher = start("sys.exit(4)", "--workers", "2", "--keep-going")
    assert launcher.wait() == 4
    launcher.wait_for_no_child()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_to_the_launcher_ends_everything(
    start: Start, number: signal.Signals, code: int
) -> None:
    launcher = start("hang()", "--servers", "2", "--workers", "2")
    launcher.wait_for_pids(4)
    launcher.send(number)
    assert launcher.wait() == code
    assert f"received {number.name}" in launcher.output()
    launcher.wait_for_no_child()


STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say("stubborn", os.getpid())
hang()
"""


def test_process_that_ignores_sigterm_is_killed_after_the_grace(start: Start) -> None:
    launcher = start(STUBBORN, "--grace-seconds", "0.2")
    launcher.wait_for_pids(3)
    launcher.send(signal.SIGTERM)
    assert launcher.wait() == 143
    assert "had to be killed: worker 0" in launcher.output()
    launcher.wait_for_no_child()


def test_second_signal_cuts_the_grace_short(start: Start) -> None:
    launcher = start(STUBBORN, "--grace-seconds", "100000")
    launcher.wait_for_pids(3)
    launcher.send(signal.SIGINT)
    wait_until(lambda: "received SIGINT" in launcher.output(), "first signal seen")
    launcher.send(signal.SIGINT)
    assert launcher.wait() == 130
    launcher.wait_for_no_child()


GRANDCHILDREN = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10000)"])
say(f"grandchild-{index}", child.pid)
"""


def test_grandchildren_end_with_the_worker(start: Start) -> None:
    launcher = start(GRANDCHILDREN, "--workers", "2")
    assert launcher.wait() == 0, launcher.output()
    assert len(launcher.wait_for_pids(4)) >= 4
    launcher.wait_for_no_child()


def test_grandchildren_end_when_the_job_fails(start: Start) -> None:
    script = GRANDCHILDREN + "hang()"
    launcher = start(script, "--workers", "2", "--max-restarts", "0")
    pids = launcher.wait_for_pids(5)
    os.kill(pids["worker-0"], signal.SIGKILL)
    assert launcher.wait() == 137
    launcher.wait_for_no_child()


def test_killed_launcher_leaves_no_process_and_no_key(start: Start, tmp_path: Path) -> None:
    script = (
        """
pathlib.Path("key").write_text(os.environ["SPARSEFLEET_JOB_KEY_FILE"])
"""
        + GRANDCHILDREN
    )
    launcher = start(script + STUBBORN, "--servers", "2", "--workers", "1", "--grace-seconds", "1")
    launcher.wait_for_pids(5)
    launcher.process.kill()
    assert launcher.wait() == -signal.SIGKILL
    launcher.wait_for_no_child()
    key = Path((tmp_path / "key").read_text())
    wait_until(lambda: not key.exists(), "key file removed")


def guard_of(launcher: LaunchProcess) -> int:
    listing = Path(f"/proc/{launcher.process.pid}/task/{launcher.process.pid}/children")
    for pid in listing.read_text().split():
        if b"_guard.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    raise AssertionError("no guard")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_guard_ends_with_the_job(start: Start) -> None:
    launcher = start("hang()")
    launcher.wait_for_pids(2)
    guard = guard_of(launcher)
    launcher.send(signal.SIGTERM)
    assert launcher.wait() == 143
    assert not is_alive(guard)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_killed_launcher_and_guard_leave_no_process(start: Start) -> None:
    launcher = start("hang()", "--workers", "2")
    launcher.wait_for_pids(3)
    os.kill(guard_of(launcher), signal.SIGKILL)
    launcher.process.kill()
    launcher.wait()
    launcher.wait_for_no_child()


def test_server_failing_when_it_is_to_end_is_a_failure(tmp_path: Path) -> None:
    script = """\
import os, signal, sys, time
if os.environ["SPARSEFLEET_ROLE"] == "server":
    def end(*_):
        print("cannot save")
        sys.exit(9)
    signal.signal(signal.SIGTERM, end)
    open("ready", "w").close()
    while True:
        time.sleep(60)
while not os.path.exists("ready"):
    time.sleep(0.01)
"""
    (tmp_path / "train.py").write_text(script)
    launcher = LaunchProcess(tmp_path, "train.py")
    try:
        assert launcher.wait() == 9
        assert "server 0 (pid" in launcher.output()
        assert "| cannot save" in launcher.output()
    finally:
        launcher.close()


def test_taken_port_is_named_before_anything_starts(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        launcher = start("hang()", "--start-port", str(port))
        assert launcher.wait() == 1
    assert f"port {port} on 127.0.0.1 is in use" in launcher.output()
    assert not launcher.pids()


def test_key_of_the_environment_is_kept(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", "a key that the user has chosen")
    launcher = start("""
assert "SPARSEFLEET_JOB_KEY_FILE" not in os.environ
pathlib.Path("key").write_text(os.environ["SPARSEFLEET_JOB_KEY"])
""")
    assert launcher.wait() == 0, launcher.output()
    assert (tmp_path / "key").read_text() == "a key that the user has chosen"


def test_quiet_job_says_nothing_unless_it_fails(start: Start) -> None:
    launcher = start("", "--quiet")
    assert launcher.wait() == 0
    assert launcher.output() == ""
    launcher = start("sys.exit(6)", "--quiet")
    assert launcher.wait() == 6
    assert "exited with code 6" in launcher.output()


def test_module_is_run_as_by_python_m(tmp_path: Path) -> None:
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "train.py").write_text(PRELUDE + "print(__name__, sys.argv[1:])")
    launcher = LaunchProcess(tmp_path, "-m", "my_package.train", "--x", "1")
    try:
        assert launcher.wait() == 0, launcher.output()
        assert launcher.log("workerlog.0") == "__main__ ['--x', '1']\n"
        launcher.wait_for_no_child()
    finally:
        launcher.close()


def test_native_servers_serve_a_script_of_workers_only(tmp_path: Path) -> None:
    script = """\
import os
import numpy as np
from sparsefleet import RemoteStore, TableSpec
assert os.environ["SPARSEFLEET_ROLE"] == "worker"
with RemoteStore(os.environ["SPARSEFLEET_SERVERS"].split(",")) as store:
    store.define(TableSpec(name="ads", dim=4))
    print("pulled", store.pull("ads", np.arange(100)).shape)
"""
    (tmp_path / "train.py").write_text(script)
    launcher = LaunchProcess(tmp_path, "--servers", "2", "--native-servers", "train.py")
    try:
        assert launcher.wait() == 0, launcher.output()
        assert "pulled (100, 4)" in launcher.log("workerlog.0")
        assert "listening on" in launcher.log("serverlog.1")
    finally:
        launcher.close()


def test_log_files_are_new_for_each_job(start: Start) -> None:
    for word in ("first", "second"):
        launcher = start(f"print({word!r})")
        assert launcher.wait() == 0, launcher.output()
    assert launcher.log("workerlog.0") == "second\n"
    assert stat.S_ISREG(os.stat(launcher.directory / "logs" / "serverlog.0").st_mode)


@pytest.mark.parametrize("flags", [("--quiet",), ()])
def test_output_of_one_process_is_shown_whole(start: Start, flags: tuple[str, ...]) -> None:
    script = """
for number in range(1000):
    print(f"{role} {index} says {number}")
sys.stdout.write("and ends without a newline")
"""
    launcher = start(script, *flags, "--workers", "2", "--show", "worker.1")
    assert launcher.wait() == 0
    shown = [line for line in launcher.output().splitlines() if not line.startswith("[")]
    said = [f"worker 1 says {number}" for number in range(1000)]
    assert shown == [*said, "and ends without a newline"]


def test_what_a_worker_leaves_in_memory_ends_with_the_job(start: Start, tmp_path: Path) -> None:
    script = """
place = pathlib.Path(os.environ["SPARSEFLEET_MEMORY_DIR"])
(place / "round.outbox").write_bytes(b"half a round")
pathlib.Path("place").write_text(str(place))
"""
    launcher = start(script, "--servers", "1", "--workers", "1")
    assert launcher.wait() == 0, launcher.output()
    assert not Path((tmp_path / "place").read_text()).exists()
