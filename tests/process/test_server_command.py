"""The `sparsefleet server` and `stats` commands as users run them: real processes, real signals."""

from __future__ import annotations

import json
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.support.server_process import DEADLINE_S, ServerProcess

from sparsefleet.errors import AuthError, RpcError
from sparsefleet.store import RemoteStore, RemoteStoreConfig, TableSpec

StartServer = Callable[..., ServerProcess]


def run_stats(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sparsefleet", "stats", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_and_exits_0(start_server: StartServer, number: signal.Signals) -> None:
    server = start_server()
    server.wait_ready()
    server.send(number)
    assert server.wait() == 0
    assert f"draining: {number.name}" in server.errors()
    assert "Traceback" not in server.errors()


@pytest.mark.parametrize("transport", ["auto", "plain"])
def test_ready_line_names_index_endpoint_and_transport(
    start_server: StartServer, transport: str
) -> None:
    flags = ("--index", "1", "--num-servers", "3", "--transport", transport)
    server = start_server(*flags)
    endpoint = server.wait_ready()
    wanted = f"sparsefleet server 1 of 3 listening on {endpoint} ({transport})\n"
    assert server.ready_line == wanted
    assert not endpoint.endswith(":0")


def test_rows_pushed_to_a_server_process_come_back(start_server: StartServer) -> None:
    with RemoteStore([start_server().wait_ready()], name="worker-0") as store:
        store.define(TableSpec(name="ads", dim=4))
        keys = np.arange(100)
        before = store.pull("ads", keys)
        assert store.push("ads", keys, np.ones((100, 4), np.float32)).applied == 100
        assert (store.pull("ads", keys) < before).all()


def page_faults(pid: int) -> int:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    return int(after_name.split()[7])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
def test_wide_pushes_reuse_the_servers_memory(start_server: StartServer) -> None:
    server = start_server()
    with RemoteStore([server.wait_ready()]) as store:
        part = (np.arange(8000), np.ones((8000, 300), np.float32))
        gradients = {"words": part, "words.contexts": part}
        for name in gradients:
            store.define(TableSpec(name=name, dim=300))

        def push(times: int) -> None:
            for _ in range(times):
                store.push_many(gradients, unique=True)

        push(4)
        before = page_faults(server.process.pid)
        push(10)
        assert page_faults(server.process.pid) - before < 8_000  # 80,000 if the memory is returned


def test_server_process_answers_commands(start_server: StartServer) -> None:
    server = start_server()
    with RemoteStore([server.wait_ready()]) as store:
        assert json.loads(store.command(0, "ping")) == {"index": 0, "num_servers": 1}


def test_clients_shutdown_request_exits_0(start_server: StartServer) -> None:
    server = start_server()
    with RemoteStore([server.wait_ready()]) as store:
        store.shutdown()
        assert server.wait() == 0
    assert "a client requested shutdown" in server.errors()


def test_taken_port_exits_1_naming_the_endpoint(start_server: StartServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        server = start_server("--endpoint", endpoint)
        assert server.wait() == 1
    lines = server.errors().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("sparsefleet server: error: ")
    assert endpoint in lines[0]


def test_stats_shows_tables_of_all_servers(start_server: StartServer) -> None:
    servers = [start_server("--index", str(index), "--num-servers", "2") for index in range(2)]
    endpoints = [server.wait_ready() for server in servers]
    with RemoteStore(endpoints) as store:
        store.define(TableSpec(name="ads", dim=4))
        store.pull("ads", np.arange(1000))
    shown = run_stats("--endpoints", *endpoints)
    assert shown.returncode == 0, shown.stderr
    assert "table.ads.rows" in shown.stdout
    as_json = run_stats("--endpoints", ",".join(endpoints), "--json")
    assert as_json.returncode == 0, as_json.stderr
    counted = json.loads(as_json.stdout)
    assert [server["table.ads.rows"] > 0 for server in counted] == [True, True]
    assert sum(server["table.ads.rows"] for server in counted) == 1000


def test_stats_without_server_exits_1_with_one_line_naming_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
    shown = run_stats("--endpoints", endpoint, "--timeout", "1")
    assert shown.returncode == 1
    assert shown.stderr.startswith("sparsefleet stats: error: ")
    assert endpoint in shown.stderr
    assert "Traceback" not in shown.stderr


def test_stranger_without_the_key_is_refused_and_the_server_keeps_serving(
    start_server: StartServer,
) -> None:
    endpoint = start_server().wait_ready()
    config = RemoteStoreConfig(connect_timeout_s=5.0)
    with pytest.raises((AuthError, RpcError), match=endpoint):
        RemoteStore([endpoint], job_key=b"not the key of this job at all", config=config)
    with RemoteStore([endpoint]) as store:
        assert len(store.stats()) == 1


def test_save_outside_the_save_root_is_refused(start_server: StartServer, tmp_path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    endpoint = start_server("--save-root", str(inside)).wait_ready()
    with RemoteStore([endpoint]) as store:
        store.define(TableSpec(name="ads", dim=4))
        store.pull("ads", np.arange(10))
        store.save(inside / "model")
        assert list((inside / "model").iterdir())
        with pytest.raises(ValueError, match="inside"):
            store.save(outside)
    assert not outside.exists()
