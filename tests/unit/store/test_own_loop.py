from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.servers import NativeServers

from sparsefleet.errors import ConfigError
from sparsefleet.optim import SGD
from sparsefleet.store import LocalStore, TableSpec, own_loop
from sparsefleet.store.own_loop import declare_own_loop, own_loop_path


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("SPARSEFLEET_INCARNATION", "SPARSEFLEET_JOB_ID", "SPARSEFLEET_OWN_LOOP_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JOBSET_NAME", "ads")
    monkeypatch.setenv("JOBSET_UID", "6f")
    become_another_process(monkeypatch, b"first")
    return monkeypatch


@pytest.fixture
def servers() -> Iterator[NativeServers]:
    with NativeServers(1) as running:
        yield running


def become_another_process(monkeypatch: pytest.MonkeyPatch, token: bytes) -> None:
    monkeypatch.setattr(own_loop, "_PROCESS", token)
    monkeypatch.setattr(own_loop, "_declared", set())


def test_process_that_replaces_one_with_a_custom_loop_is_refused(
    environ: pytest.MonkeyPatch,
) -> None:
    servers = LocalStore()
    for _ in range(2):
        declare_own_loop(servers, "worker-1")
    become_another_process(environ, b"second")
    declare_own_loop(servers, "worker-0")
    with pytest.raises(ConfigError, match=r"worker-1 cannot be continued: the previous process"):
        declare_own_loop(servers, "worker-1")
    declare_own_loop(LocalStore(), "worker-1")  # servers that have lost their state


def test_another_job_on_the_same_servers_is_not_refused(environ: pytest.MonkeyPatch) -> None:
    servers = LocalStore()
    declare_own_loop(servers, "worker-1")
    become_another_process(environ, b"second")
    environ.setenv("JOBSET_UID", "70")
    declare_own_loop(servers, "worker-1")


@pytest.mark.parametrize(
    ("name", "text"), [("SPARSEFLEET_REPEAT_OWN_LOOP", "1"), ("SPARSEFLEET_INCARNATION", "1")]
)
def test_script_that_continues_its_loop_and_launcher_that_decides_are_not_refused(
    environ: pytest.MonkeyPatch, name: str, text: str
) -> None:
    servers = LocalStore()
    declare_own_loop(servers, "worker-1")
    become_another_process(environ, b"second")
    environ.setenv(name, text)
    declare_own_loop(servers, "worker-1")


def test_store_of_a_worker_declares_its_loop_with_the_first_gradients(
    environ: pytest.MonkeyPatch, servers: NativeServers
) -> None:
    spec = TableSpec(name="t", dim=1, optimizer=SGD(lr=1.0))
    for token in (b"first", b"second"):
        become_another_process(environ, token)
        with servers.connect(name="worker-1") as store:
            store.define(spec)
            store.pull("t", [5])
    with servers.connect(name="worker-1") as store:
        store.push("t", [5], np.ones((1, 1), np.float32))
    become_another_process(environ, b"third")
    with (
        servers.connect(name="worker-1") as store,
        pytest.raises(ConfigError, match=r"worker-1 cannot be continued"),
    ):
        store.push("t", [5], np.ones((1, 1), np.float32))


def test_file_for_the_launcher_is_created(environ: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in (("ROLE", "worker"), ("INDEX", "1"), ("LOG_DIR", str(tmp_path))):
        environ.setenv(f"SPARSEFLEET_{name}", text)
    declare_own_loop(LocalStore(), "worker-1")
    assert Path(own_loop_path(str(tmp_path), 1)).exists()
