"""16-bit numbers between a store and its servers."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet import optim
from sparsefleet.errors import ConfigError
from sparsefleet.store import Constant, DenseSpec, RemoteStore, RemoteStoreConfig, TableSpec
from sparsefleet.train import TrainerConfig

KEYS = np.arange(500)
DIM = 16
ADS = TableSpec(name="ads", dim=DIM, optimizer=optim.SGD(lr=1.0), initializer=Constant(0.0))
NET = DenseSpec(name="net", size=3001, optimizer=optim.SGD(lr=1.0))


def socket_bytes(servers: NativeServers, store: RemoteStore) -> np.ndarray:
    """Return what the servers have received and sent over sockets.

    They count the bytes of a request before they read the next one of its connection.
    """
    store.version("net")
    stats = [server.stats() for server in servers.servers]
    ways = ("server.socket_bytes_in", "server.socket_bytes_out")
    return np.array([sum(one[way] for one in stats) for way in ways])


def push_and_pull(store: RemoteStore, gradient: float) -> np.ndarray:
    """Return rows and dense values after a push of this gradient everywhere."""
    store.define(ADS)
    store.define(NET)
    store.push("ads", KEYS, np.full((len(KEYS), DIM), gradient, np.float32))
    store.push_dense("net", np.full(NET.size, gradient, np.float32))
    return np.concatenate([store.pull("ads", KEYS).reshape(-1), store.pull_dense("net")])


def upper_half(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize("transport", ["tls", "plain"])
def test_numbers_take_16_bits_each_way_and_servers_keep_32(transport: str) -> None:
    moved = {}
    for dtype in ("float32", "bf16"):
        with (
            NativeServers(2, transport=transport) as servers,
            servers.connect(wire_dtype=dtype) as store,
            servers.connect(wire_dtype="float32") as other,
        ):
            for table in (ADS, NET):
                store.define(table)
            before = socket_bytes(servers, store)
            found = push_and_pull(store, 0.3)
            moved[dtype] = socket_bytes(servers, store) - before
            if dtype == "bf16":
                np.testing.assert_array_equal(found, upper_half(found))
                np.testing.assert_allclose(found, -0.3, rtol=2**-6)
                kept = push_and_pull(other, 0.0)
                np.testing.assert_allclose(kept.mean(), -0.3, rtol=1e-4)
    # Keys are not halved: 8 of the 72 bytes of a row.
    assert moved["bf16"][0] < 0.6 * moved["float32"][0]
    assert moved["bf16"][1] < 0.52 * moved["float32"][1]


def test_small_integers_are_exact() -> None:
    with NativeServers(2, transport="tls") as servers, servers.connect(wire_dtype="bf16") as store:
        for count in range(1, 20):
            np.testing.assert_array_equal(push_and_pull(store, -3.0), 3.0 * count)


def test_shared_memory_moves_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEFLEET_WIRE_DTYPE", "bf16")
    with NativeServers(1, transport="auto") as servers, servers.connect() as store:
        found = push_and_pull(store, 0.3)
        if not servers.servers[0].stats()["server.lane_connections_total"]:
            pytest.skip("this system has no shared memory between client and server")
        np.testing.assert_array_equal(found, np.float32(-0.3))


def test_the_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEFLEET_WIRE_DTYPE", "bf16")
    with NativeServers(1, transport="plain") as servers:
        with servers.connect() as store:
            found = push_and_pull(store, 0.3)
            np.testing.assert_array_equal(found, upper_half(found))
        with servers.connect(wire_dtype="float32") as store:
            found = push_and_pull(store, 0.3)
            assert (found != upper_half(found)).any()


def test_an_unknown_format_names_the_existing_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for config in (RemoteStoreConfig, TrainerConfig):
        with pytest.raises(ConfigError, match=r"wire_dtype must be 'float32' or 'bf16', got 'f16'"):
            config(wire_dtype="f16")
    monkeypatch.setenv("SPARSEFLEET_WIRE_DTYPE", "half")
    with pytest.raises(ConfigError, match="SPARSEFLEET_WIRE_DTYPE must be .* got 'half'"):
        RemoteStore(["127.0.0.1:1"], job_key=JOB_KEY)
