"""A dead or silent peer is noticed within its configured time, and named."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from tests.faults.cutting_proxy import CuttingProxy
from tests.support.server_process import ServerProcess
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet.errors import DeadlineError, PeerLostError, ServerRestartedError
from sparsefleet.store import RemoteStore, RemoteStoreConfig, TableSpec

StartServer = Callable[..., ServerProcess]

# A lost peer is named after peer_timeout_s; the rest is slack for a busy machine, and far below
# the deadline of the calls.
PROMPT_S = 20.0
FAST = {"heartbeat_interval_s": 0.2, "peer_timeout_s": 1.5, "try_timeout_s": 1.0}


def test_killed_server_is_named_long_before_the_deadline(start_server: StartServer) -> None:
    server = start_server()
    endpoint = server.wait_ready()
    with RemoteStore([endpoint], config=RemoteStoreConfig(timeout_s=120.0, **FAST)) as store:
        store.define(TableSpec(name="t", dim=2))
        store.pull("t", np.arange(5))
        server.send(signal.SIGKILL)
        server.wait()
        start = time.monotonic()
        with pytest.raises(PeerLostError, match=endpoint):
            store.pull("t", np.arange(5))
        assert time.monotonic() - start < PROMPT_S


def test_stopped_server_ends_a_barrier_wait(start_server: StartServer) -> None:
    """With SIGSTOP the socket stays open, but nothing answers."""
    server = start_server()
    endpoint = server.wait_ready()
    with RemoteStore([endpoint], config=RemoteStoreConfig(timeout_s=120.0, **FAST)) as store:
        server.send(signal.SIGSTOP)
        try:
            start = time.monotonic()
            with pytest.raises(PeerLostError, match=endpoint):
                store.barrier("nobody-comes", 2)
            assert time.monotonic() - start < PROMPT_S
        finally:
            server.send(signal.SIGCONT)


def test_silent_client_is_named_by_the_server_and_ends_the_barrier_of_the_others() -> None:
    with NativeServers(1, peer_timeout_s=1.0) as servers:
        with CuttingProxy(servers.servers[0].port) as proxy:
            lost = RemoteStore(
                [proxy.endpoint], name="worker-7", job_key=JOB_KEY, config=RemoteStoreConfig(**FAST)
            )
            waiter = threading.Thread(target=_expect_any_error, args=(lost,))
            with servers.connect(name="worker-0", timeout_s=60.0) as store:
                waiter.start()
                _wait_for_barrier_member(servers)
                proxy.freeze()
                with pytest.raises(PeerLostError, match="worker-7"):
                    store.barrier("epoch", 3)
            # The server logs it after it has ended the barrier.
            _wait_until(lambda: any("worker-7" in message for _, message in servers.messages))
            assert servers.servers[0].stats()["server.clients_lost"] == 1
            proxy.thaw()
            lost.close()
            waiter.join(30)
            assert not waiter.is_alive()


def _expect_any_error(store: RemoteStore) -> None:
    with pytest.raises((PeerLostError, DeadlineError)):
        store.barrier("epoch", 3, timeout_s=20.0)


def _wait_for_barrier_member(servers: NativeServers) -> None:
    _wait_until(lambda: servers.servers[0].stats().get("server.requests.barrier", 0) >= 1)


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PROMPT_S
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        threading.Event().wait(0.01)


def test_server_that_came_back_empty_is_not_taken_for_the_old_one(
    start_server: StartServer,
) -> None:
    first = start_server()
    endpoint = first.wait_ready()
    config = RemoteStoreConfig(timeout_s=30.0, **{**FAST, "peer_timeout_s": 20.0})
    with RemoteStore([endpoint], config=config) as store:
        store.define(TableSpec(name="t", dim=2))
        first.send(signal.SIGKILL)
        first.wait()
        start_server("--endpoint", endpoint).wait_ready()
        with pytest.raises(ServerRestartedError, match=endpoint):
            store.push("t", np.arange(3), np.ones((3, 2), np.float32))


def test_barrier_deadline_names_who_arrived() -> None:
    with NativeServers(1) as servers, servers.connect(name="worker-0") as store:
        with pytest.raises(DeadlineError, match=r"'epoch-3'.*1 of 2.*worker-0"):
            store.barrier("epoch-3", 2, timeout_s=0.3)
