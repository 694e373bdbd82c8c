"""Shared memory between a store and servers on its own host: when it is used, and when not."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from tests.faults.cutting_proxy import CuttingProxy
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet.errors import ConfigError
from sparsefleet.store import RemoteStore, RemoteStoreConfig, TableSpec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are no host lanes")

KEYS = np.arange(1000)


def lane_connections(servers: NativeServers) -> float:
    return sum(server.stats()["server.lane_connections_total"] for server in servers.servers)


def push_and_pull(store: RemoteStore) -> None:
    store.define(TableSpec(name="ads", dim=4))
    before = store.pull("ads", KEYS)
    store.push("ads", KEYS, np.ones((len(KEYS), 4), np.float32))
    assert (store.pull("ads", KEYS) < before).all()


def test_a_store_shares_memory_with_servers_of_its_host_unasked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SPARSEFLEET_TRANSPORT", raising=False)
    with NativeServers(2) as servers:
        with RemoteStore(servers.endpoints, job_key=JOB_KEY) as store:
            push_and_pull(store)
        assert lane_connections(servers) == 2


@pytest.mark.parametrize("transport", ["tls", "auto"])
def test_the_environment_or_the_server_can_ask_for_tls(
    monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setenv("SPARSEFLEET_TRANSPORT", transport)
    with NativeServers(1, transport="auto" if transport == "tls" else "tls") as servers:
        with RemoteStore(servers.endpoints, job_key=JOB_KEY) as store:
            push_and_pull(store)
        assert lane_connections(servers) == 0


def test_what_stands_between_store_and_server_is_not_gone_round() -> None:
    with (
        NativeServers(1) as servers,
        CuttingProxy(servers.servers[0].port, cuts=0) as proxy,
        RemoteStore(
            [proxy.endpoint],
            transport="auto",
            job_key=JOB_KEY,
            config=RemoteStoreConfig(timeout_s=20.0),
        ) as store,
    ):
        push_and_pull(store)
        assert lane_connections(servers) == 0
        assert servers.servers[0].stats()["server.requests.lane"] >= 1


def test_an_unknown_transport_names_the_existing_ones() -> None:
    with pytest.raises(ConfigError, match="'auto', 'tls' or 'plain', got 'smoke'"):
        RemoteStore(["127.0.0.1:1"], transport="smoke", job_key=JOB_KEY)  # type: ignore[arg-type]
