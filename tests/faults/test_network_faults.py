"""Jobs on several machines whose network fails: partition, loss in one direction, delay.

The machines are network namespaces; see `tests/support/hosts.py`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.support.command_process import DEADLINE_S, CommandProcess
from tests.support.hosts import Hosts
from tests.support.launch_process import LaunchProcess, wait_until
from tests.support.server_process import ServerProcess

pytestmark = [
    pytest.mark.job,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux network namespaces"),
]

BATCHES = 150
FAULT_S = 3.0
LEDGER = "import sys\nfrom sparsefleet.cli.ledger import main\nsys.exit(main())\n"
# Adds 1 to a row until it is asked to stop, then prints how often.
PUSHES = """\
import pathlib, sys
import numpy as np
from sparsefleet import optim
from sparsefleet.store import Constant, RemoteStore, RemoteStoreConfig, TableSpec
endpoint, wait_s, place = sys.argv[1], float(sys.argv[2]), pathlib.Path(sys.argv[3])
config = RemoteStoreConfig(timeout_s=3, try_timeout_s=1, failover_wait_s=wait_s)
with RemoteStore([endpoint], config=config) as store:
    store.define(
        TableSpec(name="t", dim=1, optimizer=optim.SGD(lr=1.0), initializer=Constant(0.0))
    )
    pushes = 0
    while not (place / "end").exists():
        store.push("t", np.arange(8), np.full((8, 1), -1.0, np.float32))
        pushes += 1
        (place / "pushes").write_text(str(pushes))
    assert store.pull("t", np.arange(8), train=False).tolist() == [[pushes]] * 8, pushes
"""


@pytest.fixture(autouse=True)
def job_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", "the key of the job on several machines")


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts(3) as made:
        yield made


def cut_off(hosts: Hosts) -> Callable[[], None]:
    hosts.cut_off(1)
    return lambda: hosts.plug_in(1)


def lose_one_way(hosts: Hosts) -> Callable[[], None]:
    hosts.lose_packets(0, 1)
    return lambda: hosts.find_packets(0, 1)


def shape(discipline: str) -> Callable[[Hosts], Callable[[], None]]:
    def begin(hosts: Hosts) -> Callable[[], None]:
        for host in range(2):
            hosts.shape(host, discipline)

        def end() -> None:
            for host in range(2):
                hosts.unshape(host)

        return end

    return begin


@pytest.mark.parametrize(
    ("mode", "begin"),
    [
        ("sync", cut_off),
        ("async", lose_one_way),
        # Slower than the job needs: packets wait in a queue, and are dropped when it is full.
        ("half_async", shape("tbf rate 400kbit burst 4kb latency 100ms")),
        ("geo", shape("netem delay 60ms 30ms loss 5%")),
    ],
    ids=["sync-partition", "async-one-way", "half_async-slow", "geo-delay-and-loss"],
)
def test_a_job_outlives_a_faulty_network(
    hosts: Hosts, tmp_path: Path, mode: str, begin: Callable[[Hosts], Callable[[], None]]
) -> None:
    begin(hosts)()  # skips the test if the kernel cannot do it
    (tmp_path / "train.py").write_text(LEDGER)
    nodes = ",".join(hosts.address(number) for number in range(2))
    shape = ("--servers", "2", "--workers", "2", "--start-port", "9100")
    job = ("--mode", mode, "--batches", str(BATCHES), "--pace-ms", "30", "--out", str(tmp_path))
    with ExitStack() as stack:
        launchers = []
        for rank in range(2):
            node = ("--nodes", nodes, "--node-rank", str(rank), "--log-dir", f"logs-{rank}")
            words = (*node, *shape, "train.py", *job)
            launchers.append(LaunchProcess(tmp_path, *words, prefix=hosts.prefix(rank)))
            stack.callback(launchers[-1].close)
        wait_until(
            lambda: all((tmp_path / f"begun-{rank}").exists() for rank in range(2)), "training"
        )
        end = begin(hosts)
        time.sleep(FAULT_S)
        end()
        for launcher in launchers:
            assert launcher.wait() == 0, launcher.output()
    found = json.loads((tmp_path / "ledger.json").read_text())
    assert (found["records"], found["missing"], found["repeated"]) == (2 * BATCHES * 32, 0, 0)
    assert set(found["counted"]) == {2 * BATCHES * 32}


@contextmanager
def pushes_from(hosts: Hosts, host: int, place: Path, wait_s: float) -> Iterator[Callable[[], int]]:
    """Run PUSHES; gives a function that waits for its exit code. Its errors are in place/errors."""
    words = ["-c", PUSHES, f"{hosts.address(0)}:9100", str(wait_s), str(place)]
    with (place / "errors").open("w") as errors:
        process = subprocess.Popen([*hosts.prefix(host), sys.executable, *words], stderr=errors)
        try:
            wait_until(lambda: (place / "pushes").exists() or process.poll() is not None, "a push")
            yield lambda: process.wait(DEADLINE_S)
        finally:
            process.kill()
            process.wait()


def wait_for_more_pushes(place: Path) -> None:
    before = (place / "pushes").read_text()
    wait_until(lambda: (place / "pushes").read_text() not in ("", before), "another push")


def test_a_partition_that_lasts_too_long_is_an_error_with_the_server_s_name(
    hosts: Hosts, tmp_path: Path
) -> None:
    flags = ("--durability", "process", "--log-dir", str(tmp_path / "log"))
    server = ServerProcess("--endpoint", f"{hosts.address(0)}:9100", *flags, prefix=hosts.prefix(0))
    try:
        server.wait_ready()
        with pushes_from(hosts, 1, tmp_path, wait_s=12.0) as wait:
            hosts.cut_off(1)
            assert wait() == 1
        errors = (tmp_path / "errors").read_text()
        assert re.search(
            rf"PeerLostError: .*server 0 \({hosts.address(0)}:9100\): the server is lost", errors
        ), errors
    finally:
        server.kill()


def test_the_loss_of_a_machine_costs_nothing_with_a_replica(hosts: Hosts, tmp_path: Path) -> None:
    replica_at = f"{hosts.address(1)}:9200"
    ready = re.compile(r"sparsefleet replica listening on (?P<endpoint>\S+) \(auto\)\n")
    replica = CommandProcess(
        ready,
        *("replica", "--endpoint", replica_at, "--log-dir", str(tmp_path / "replica")),
        prefix=hosts.prefix(1),
    )
    servers: list[ServerProcess] = []

    def start_server(host: int) -> None:
        flags = ("--durability", "replica", "--replica", replica_at)
        place = ("--log-dir", str(tmp_path / f"log-{host}"))
        where = ("--endpoint", f"{hosts.address(0)}:9100")
        servers.append(ServerProcess(*where, *flags, *place, prefix=hosts.prefix(host)))
        servers[-1].wait_ready()

    try:
        replica.read_ready_line()
        start_server(0)
        with pushes_from(hosts, 1, tmp_path, wait_s=DEADLINE_S) as wait:
            hosts.cut_off(0)  # the old server still runs, but is cut off
            hosts.give_address(2, of=0)
            start_server(2)
            wait_for_more_pushes(tmp_path)
            servers[0].kill()
            shutil.rmtree(tmp_path / "log-0")
            wait_for_more_pushes(tmp_path)
            (tmp_path / "end").touch()
            assert wait() == 0, (tmp_path / "errors").read_text()
    finally:
        for process in (*servers, replica):
            process.kill()
