"""Servers whose logs are replicated by another process survive the loss of their machine."""

from __future__ import annotations

import re
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.command_process import DEADLINE_S, CommandProcess
from tests.support.launch_process import wait_until
from tests.support.server_process import ServerProcess

from sparsefleet import optim
from sparsefleet.store import Constant, RemoteStore, RemoteStoreConfig, TableSpec

KEYS = np.arange(40)
ONES = np.full((len(KEYS), 2), -1.0, np.float32)
CONFIG = RemoteStoreConfig(timeout_s=DEADLINE_S, failover_wait_s=DEADLINE_S)
SPEC = TableSpec(name="t", dim=2, optimizer=optim.SGD(lr=1.0), initializer=Constant(0.0))
_READY = re.compile(r"sparsefleet replica listening on (?P<endpoint>\S+) \(auto\)\n")


class Machines:
    """A server on one machine and its replica on another; each can be lost."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._number = 0
        self.replica, self._replica_at = self._start_replica("127.0.0.1:0")
        self.server = self._start_server("127.0.0.1:0")
        self.endpoint = self.server.wait_ready()

    def _start_replica(self, endpoint: str) -> tuple[CommandProcess, str]:
        flags = ["--endpoint", endpoint, "--log-dir", str(self._place / "replica")]
        process = CommandProcess(_READY, "replica", *flags)
        return process, process.read_ready_line()["endpoint"]

    def _start_server(self, endpoint: str) -> ServerProcess:
        flags = ["--endpoint", endpoint, "--durability", "replica", "--replica", self._replica_at]
        return ServerProcess(*flags, "--log-dir", str(self.directory))

    @property
    def directory(self) -> Path:
        return self._place / f"machine-{self._number}"

    def lose_server(self) -> None:
        """Lose the server and its machine; start its successor on a new one."""
        self.server.kill()
        shutil.rmtree(self.directory)
        self.start_successor()

    def start_successor(self, endpoint: str = "") -> None:
        self._number += 1
        self.server = self._start_server(endpoint or self.endpoint)
        self.server.wait_ready()

    def restart_replica(self) -> None:
        self.replica.kill()
        self.replica, _ = self._start_replica(self._replica_at)

    def close(self) -> None:
        self.server.kill()
        self.replica.kill()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    made.close()


def test_each_push_adds_exactly_one_over_lost_machines(machines: Machines) -> None:
    pushes = 0
    is_over = threading.Event()

    def lose() -> None:
        try:
            for _ in range(2):
                machines.lose_server()
                machines.restart_replica()
        finally:
            is_over.set()

    with RemoteStore([machines.endpoint], config=CONFIG) as store:
        store.define(SPEC)
        thread = threading.Thread(target=lose)
        thread.start()
        while not is_over.is_set():
            store.push("t", KEYS, ONES)
            pushes += 1
        thread.join()
        store.push("t", KEYS, ONES)
        assert store.pull("t", KEYS, train=False).tolist() == [[pushes + 1] * 2] * len(KEYS)
        stats = store.stats()[0]
    assert stats["log.replica_epoch"] == 3
    assert stats["log.replica_lost"] == stats["log.replica_degraded"] == 0


def test_stopped_server_ends_when_it_wakes_up_after_its_successor(machines: Machines) -> None:
    with RemoteStore([machines.endpoint], config=CONFIG) as store:
        store.define(SPEC)
        store.push("t", KEYS, ONES)
        zombie = machines.server
        zombie.send(signal.SIGSTOP)
        machines.start_successor("127.0.0.1:0")
        zombie.send(signal.SIGCONT)
        assert zombie.wait() == 1
        assert "a successor (epoch 2) has taken over" in zombie.errors()
        zombie.kill()


def test_successor_on_the_same_machine_kills_a_stopped_server(tmp_path: Path) -> None:
    flags = ["--durability", "process", "--log-dir", str(tmp_path / "log")]
    zombie = ServerProcess(*flags)
    endpoint = zombie.wait_ready()
    try:
        with RemoteStore([endpoint], config=CONFIG) as store:
            store.define(SPEC)
            store.push("t", KEYS, ONES)
            zombie.send(signal.SIGSTOP)
            successor = ServerProcess(*flags, "--take-over")
            try:
                with RemoteStore([successor.wait_ready()], config=CONFIG) as other:
                    assert other.pull("t", KEYS, train=False).tolist() == [[1.0] * 2] * len(KEYS)
                wait_until(
                    lambda: zombie.process.poll() is not None, "the stopped server is killed"
                )
            finally:
                successor.kill()
    finally:
        zombie.kill()
