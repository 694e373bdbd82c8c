"""Peers without the job key must not keep workers out or make checkpoints fail."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.support.launch_process import wait_until
from tests.support.saved_training import click_batches, contents, make_trainer
from tests.support.server_process import ServerProcess
from tests.support.strangers import Strangers, num_strangers

from sparsefleet.store import RemoteStore, RemoteStoreConfig, TableSpec

StartServer = Callable[..., ServerProcess]

FEW_FILES = 256
CONNECT_S = 5.0  # takes milliseconds; room for a machine under load


def open_file_limit(server: ServerProcess) -> int:
    for line in Path(f"/proc/{server.process.pid}/limits").read_text().splitlines():
        if line.startswith("Max open files"):
            return int(line.split()[3])
    raise AssertionError("no limit of open files in /proc")


def num_open_files(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


@pytest.mark.parametrize("transport", ["auto", "tls", "plain"])
def test_a_worker_trains_and_saves_among_silent_strangers(
    start_server: StartServer,
    transport: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARSEFLEET_TRANSPORT", transport)
    server = start_server("--transport", transport, open_files=(FEW_FILES, FEW_FILES))
    endpoint = server.wait_ready()
    config = RemoteStoreConfig(connect_timeout_s=CONNECT_S)
    count = num_strangers(1_400)
    with Strangers(endpoint, count) as strangers:
        # By now the server has closed more connections than it may keep open.
        wait_until(lambda: strangers.opened > 2 * count, "closing strangers")
        with RemoteStore([endpoint], transport=transport, config=config) as store:  # type: ignore[arg-type]
            store.define(TableSpec(name="first", dim=2))
        with make_trainer([endpoint], mode="async") as trainer:
            assert trainer.fit(click_batches(5)).last.steps == 5
            trainer.save(tmp_path / "saved")
        assert num_open_files(server) < FEW_FILES
    assert contents(tmp_path / "saved")["ads:keys"].size > 0
    assert "Too many open files" not in server.errors()


def test_connections_that_have_proven_the_key_outlive_any_number_of_strangers(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = start_server(open_files=(FEW_FILES, FEW_FILES)).wait_ready()
    keys = np.arange(10)
    with RemoteStore([endpoint], transport="tls") as store, caplog.at_level(logging.INFO):
        store.define(TableSpec(name="ads", dim=4))
        count = num_strangers(1_000)
        with Strangers(endpoint, count) as strangers:
            while strangers.opened < 5 * count:
                store.push("ads", keys, np.ones((10, 4), np.float32))
            stats = store.stats()[0]
        assert stats["server.unproven_dropped"] > 3 * count
        assert stats["server.connections"] < FEW_FILES
        assert stats["server.clients_lost"] == 0
    assert not [record for record in caplog.records if "failed" in record.getMessage()]


def test_the_soft_limit_of_open_files_is_raised(start_server: StartServer) -> None:
    raised = start_server("--max-connections", "500", open_files=(FEW_FILES, 4_096))
    raised.wait_ready()
    assert 500 < open_file_limit(raised) <= 4_096
    stuck = start_server("--max-connections", "500", open_files=(FEW_FILES, FEW_FILES))
    stuck.wait_ready()
    assert open_file_limit(stuck) == FEW_FILES
    wait_until(lambda: "connections instead of 500" in stuck.errors(), "logged")


def test_a_server_that_may_open_next_to_nothing_says_so(start_server: StartServer) -> None:
    server = start_server(open_files=(40, 40))
    assert server.wait() == 1
    last = server.errors().splitlines()[-1]
    assert "40" in last
    assert "ulimit -n" in last
