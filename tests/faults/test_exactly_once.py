"""Requests over connections that break at any byte are applied exactly once."""

from __future__ import annotations

import collections
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from tests.faults.cutting_proxy import CuttingProxy
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet import _core, optim
from sparsefleet.store import Constant, RemoteStore, RemoteStoreConfig, TableSpec

PUSHES = 150
KEYS = np.arange(40)


@pytest.mark.parametrize("transport", ["tls", "plain"])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_pushes_over_breaking_connections_add_up(transport: str, num_threads: int) -> None:
    with NativeServers(2, transport=transport) as servers, ExitStack() as stack:
        proxies = [
            stack.enter_context(CuttingProxy(s.port, cuts=60, bytes_before_cut=(1, 6000)))
            for s in servers.servers
        ]
        store = stack.enter_context(_connect(proxies, transport))
        _push_from(store, num_threads)
        assert sum(proxy.cuts for proxy in proxies) < 120, "no connection was ever cut"
        _expect_pushes(store, PUSHES * num_threads)


@pytest.mark.parametrize("transport", ["tls", "plain"])
def test_pushes_that_arrive_after_their_retry_are_not_applied_again(transport: str) -> None:
    with NativeServers(2, transport=transport) as servers, ExitStack() as stack:
        proxies = [
            stack.enter_context(
                CuttingProxy(s.port, cuts=60, bytes_before_cut=(1, 6000), is_late=True)
            )
            for s in servers.servers
        ]
        store = stack.enter_context(_connect(proxies, transport))
        _push_from(store, 3)
        for proxy in proxies:
            proxy.deliver()
        for server in servers.servers:
            assert server.stats()["server.requests.push"] > PUSHES * 3, "no push came twice"
        _expect_pushes(store, PUSHES * 3)


def _connect(proxies: list[CuttingProxy], transport: str) -> RemoteStore:
    # The first hello must get through within the connect timeout; later ones are retried.
    return RemoteStore(
        [proxy.endpoint for proxy in proxies],
        transport=transport,  # type: ignore[arg-type]
        job_key=JOB_KEY,
        config=RemoteStoreConfig(timeout_s=60.0, try_timeout_s=5.0),
    )


def _push_from(store: RemoteStore, num_threads: int) -> None:
    store.define(
        TableSpec(name="sum", dim=3, optimizer=optim.SGD(lr=1.0), initializer=Constant(0.0))
    )
    failures: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(PUSHES):
                store.push("sum", KEYS, np.full((40, 3), -1.0, np.float32))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def _expect_pushes(store: RemoteStore, count: int) -> None:
    rows = store.pull("sum", KEYS, train=False)
    np.testing.assert_array_equal(rows, np.full((40, 3), count))
    assert store.version("sum") == count


def test_barrier_over_breaking_connections_counts_each_member_once() -> None:
    with (
        NativeServers(1) as servers,
        CuttingProxy(servers.servers[0].port, cuts=25, bytes_before_cut=(1500, 5000)) as proxy,
        _connect([proxy], "tls") as store,
    ):
        passed = [0, 0]

        def member(index: int) -> None:
            for round_number in range(30):
                store.barrier(f"round-{round_number}", 2)
                passed[index] += 1
                assert abs(passed[0] - passed[1]) <= 1

        threads = [threading.Thread(target=member, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert passed == [30, 30]
        assert proxy.cuts < 25, "no connection was ever cut"


@pytest.mark.parametrize("is_late", [False, True])
def test_commands_over_breaking_connections_are_handled_once(is_late: bool) -> None:
    handled: collections.Counter[bytes] = collections.Counter()
    lock = threading.Lock()

    def count(command: _core.Command) -> None:
        with lock:
            handled[command.body[:8]] += 1
        command.reply(command.body[::-1])

    with (
        NativeServers(handlers={"count": count}) as servers,
        CuttingProxy(
            servers.servers[0].port, cuts=60, bytes_before_cut=(1, 6000), is_late=is_late
        ) as proxy,
        _connect([proxy], "tls") as store,
    ):

        def call(thread: int) -> None:
            for number in range(50):
                body = f"{thread:03}-{number:04}".encode() + bytes(500)
                assert store.command(0, "count", body) == body[::-1]

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(call, range(3)))
        proxy.deliver()
        assert proxy.cuts < 60, "no connection was ever cut"
        assert servers.servers[0].stats()["server.requests.command"] > 150, "none came twice"
    assert len(handled) == 150
    assert set(handled.values()) == {1}
