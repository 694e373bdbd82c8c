"""Bad input raises a typed error that names the culprit, on the side that can act; nothing else is
affected.
"""

from __future__ import annotations

import os
import socket
import threading
import time

import numpy as np
import pytest
import torch
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet import optim
from sparsefleet.errors import (
    AuthError,
    ConfigError,
    DeadlineError,
    NonFiniteError,
    NotFoundError,
    ShapeError,
    SparseFleetError,
    TableError,
    TooLargeError,
    UnknownTableError,
)
from sparsefleet.store import (
    Constant,
    DenseSpec,
    LocalStore,
    RemoteStore,
    RemoteStoreConfig,
    Store,
    TableSpec,
)

ADS = TableSpec(name="ads", dim=4, optimizer=optim.SGD(lr=1.0), initializer=Constant(0.0))
STRICT = TableSpec(
    name="strict",
    dim=2,
    optimizer=optim.SGD(lr=1.0),
    initializer=Constant(0.0),
    non_finite="raise",
)


@pytest.fixture(params=["local", "remote"])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "local":
        with LocalStore() as store:
            yield store
    else:
        with NativeServers(2) as servers, servers.connect() as store:
            yield store


def test_unknown_table_is_named_with_the_existing_ones(store: Store) -> None:
    store.define(ADS)
    with pytest.raises(UnknownTableError, match=r"'adz'.*ads"):
        store.pull("adz", np.array([1]))


def test_defining_another_spec_under_the_same_name_names_the_field(store: Store) -> None:
    store.define(ADS)
    store.define(ADS)
    with pytest.raises(TableError, match=r"'ads'.*dim"):
        store.define(TableSpec(name="ads", dim=5, optimizer=optim.SGD(lr=1.0)))


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.float64, bool])
def test_keys_of_another_dtype_are_refused(store: Store, dtype: type) -> None:
    store.define(ADS)
    with pytest.raises(ShapeError, match=rf"'ads'.*int64.*{np.dtype(dtype).name}"):
        store.pull("ads", np.array([1, 2]).astype(dtype))


def test_gradients_of_another_length_width_or_dtype_are_refused(store: Store) -> None:
    store.define(ADS)
    keys = np.arange(3)
    for bad in (
        np.ones((2, 4), np.float32),
        np.ones((3, 5), np.float32),
        np.ones((3, 4), np.float64),
        np.ones(12, np.float32),
    ):
        with pytest.raises(ShapeError, match="'ads'"):
            store.push("ads", keys, bad)
    assert store.info("ads").size == 0


def test_dense_and_sparse_tables_are_not_confused(store: Store) -> None:
    store.define(ADS)
    store.define(DenseSpec(name="bias", size=10))
    with pytest.raises(SparseFleetError, match="bias"):
        store.pull("bias", np.array([1]))
    with pytest.raises(SparseFleetError, match="ads"):
        store.pull_dense("ads")
    with pytest.raises(ShapeError, match="bias"):
        store.push_dense("bias", np.ones(9, np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_row_is_rejected_counted_and_the_rest_applied(
    store: Store, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    store.define(ADS)
    gradients = np.full((3, 4), -1.0, np.float32)
    gradients[1, 2] = value
    with caplog.at_level("WARNING", "sparsefleet"):
        assert store.push("ads", np.array([5, 6, 7]), gradients) == (2, 1, 0)
    assert "ads" in caplog.text
    rows = store.pull("ads", np.array([5, 6, 7]), train=False)
    np.testing.assert_array_equal(rows, [[1] * 4, [0] * 4, [1] * 4])
    assert sum(s["table.ads.rejected_non_finite"] for s in store.stats()) == 1


def test_raising_policy_refuses_the_whole_push_on_every_server(store: Store) -> None:
    store.define(STRICT)
    store.define(ADS)
    keys = np.arange(64)  # on every server
    gradients = np.ones((64, 2), np.float32)
    gradients[63, 1] = np.nan
    with pytest.raises(NonFiniteError, match=r"'strict'.*key 63"):
        store.push_many({"ads": (keys, np.ones((64, 4), np.float32)), "strict": (keys, gradients)})
    for table in ("ads", "strict"):
        assert store.info(table).size == 0
        assert store.version(table) == 0


def test_missing_note_and_deleted_note(store: Store) -> None:
    with pytest.raises(NotFoundError, match="'where'"):
        store.get_note("where")
    store.put_note("where", b"\x00here")
    assert store.get_note("where") == b"\x00here"
    store.delete_note("where")
    with pytest.raises(NotFoundError):
        store.get_note("where")
    with pytest.raises(SparseFleetError, match=r"65536|64 KiB"):
        store.put_note("big", bytes(70_000))


def test_waiting_note_arrives(store: Store) -> None:
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(store.get_note("later", wait=True)))
    thread.start()
    store.put_note("later", b"now")
    thread.join(20)
    assert found == [b"now"]


def test_missing_save_directory_is_named(store: Store, tmp_path) -> None:
    store.define(ADS)
    with pytest.raises(SparseFleetError, match="not-there"):
        store.load(tmp_path / "not-there")


def test_closed_store_and_bad_settings(store: Store) -> None:
    with pytest.raises(ConfigError, match="timeout_s"):
        store.stats(timeout_s=0)
    with pytest.raises(ConfigError, match="unknown"):
        store.pull("ads", np.array([1]), unknown="nan")  # type: ignore[arg-type]
    store.close()
    store.close()
    with pytest.raises(SparseFleetError, match="closed"):
        store.stats()


def test_store_is_refused_in_a_fork(store: Store) -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:  # the child must not run the parent's cleanup
        try:
            store.stats()
        except ConfigError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)
    assert b"fork" in os.read(reader, 1000)
    os.close(reader)
    assert store.stats()


def test_wrong_key_gets_nothing_and_others_are_served() -> None:
    for transport in ("tls", "plain"):
        with NativeServers(1, transport=transport) as servers, servers.connect() as good:
            good.define(ADS)
            with pytest.raises(AuthError, match=servers.endpoints[0]):
                RemoteStore(servers.endpoints, transport=transport, job_key=b"x" * 32)
            other = "plain" if transport == "tls" else "tls"
            with pytest.raises(AuthError, match=servers.endpoints[0]):
                RemoteStore(servers.endpoints, transport=other, job_key=JOB_KEY)
            assert good.pull("ads", np.array([1])).shape == (1, 4)
            assert servers.servers[0].stats()["server.strangers_refused"] >= 2


@pytest.mark.parametrize("transport", ["tls", "plain"])
def test_stranger_gets_no_more_than_a_closed_connection(transport: str) -> None:
    with NativeServers(1, transport=transport) as servers, servers.connect() as good:
        for opening in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"SPFL" + bytes(60)):
            with socket.create_connection(("127.0.0.1", servers.servers[0].port), 10) as stranger:
                stranger.sendall(opening)
                answer = b""
                try:
                    while part := stranger.recv(4096):
                        answer += part
                except ConnectionResetError:
                    pass
                assert answer == b""
        good.define(ADS)


def test_number_of_servers_must_agree() -> None:
    with NativeServers(2) as servers:
        with pytest.raises(SparseFleetError, match="server"):
            RemoteStore(servers.endpoints[:1], job_key=JOB_KEY)
        with pytest.raises(SparseFleetError, match="server"):
            RemoteStore(servers.endpoints[::-1], job_key=JOB_KEY)


def test_request_over_the_frame_limit_is_refused_with_both_sizes() -> None:
    with NativeServers(1, max_frame_bytes=4096) as servers, servers.connect() as store:
        store.define(ADS)
        with pytest.raises(TooLargeError, match="4096"):
            store.pull("ads", np.arange(1000))
        with pytest.raises(TooLargeError, match="4096"):
            store.push("ads", np.arange(1000), np.ones((1000, 4), np.float32))
        assert store.pull("ads", np.arange(10)).shape == (10, 4)


def test_bad_endpoints_are_named() -> None:
    for bad in ("nonsense", "127.0.0.1:99999", "127.0.0.1:", ":80:90"):
        with pytest.raises(ConfigError, match="endpoint"):
            RemoteStore([bad], job_key=JOB_KEY)
    with pytest.raises(ConfigError, match="list"):
        RemoteStore("127.0.0.1:80", job_key=JOB_KEY)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="16"):
        RemoteStore(["127.0.0.1:80"], job_key=b"short")


def test_nobody_listening_is_named_within_the_connect_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    config = RemoteStoreConfig(connect_timeout_s=0.5)
    start = time.monotonic()
    with pytest.raises(DeadlineError, match=f"127.0.0.1:{port}"):
        RemoteStore([f"127.0.0.1:{port}"], job_key=JOB_KEY, config=config)
    assert time.monotonic() - start < 10.0


@pytest.mark.parametrize(
    "gradients",
    [
        torch.ones(2, 4, requires_grad=True),
        torch.ones(2, 4, dtype=torch.bfloat16),
        [[1.0, 2.0], [3.0]],
    ],
    ids=["requires grad", "bfloat16", "ragged"],
)
def test_what_numpy_cannot_read_is_a_shape_error(store: Store, gradients: object) -> None:
    store.define(ADS)
    with pytest.raises(ShapeError, match="'ads': gradients"):
        store.push("ads", np.arange(2), gradients)


def test_key_without_dimensions_gives_one_row(store: Store) -> None:
    store.define(ADS)
    assert store.pull("ads", np.array(7)).shape == (4,)
    assert store.pull("ads", torch.tensor([[1], [2]])).shape == (2, 1, 4)


def test_invalid_settings_are_refused(store: Store) -> None:
    for bad in (float("inf"), float("nan"), -1.0):
        with pytest.raises(ConfigError, match="timeout_s"):
            store.stats(timeout_s=bad)
        with pytest.raises(ConfigError, match="timeout_s"):
            LocalStore(timeout_s=bad)
        with pytest.raises(ConfigError, match="connect_timeout_s"):
            RemoteStoreConfig(connect_timeout_s=bad)
    with pytest.raises(ConfigError, match="step"):
        store.step = 2**70


def test_saving_or_loading_without_a_table_says_so(store: Store, tmp_path) -> None:
    for act in (store.save, store.load):
        with pytest.raises(UnknownTableError, match="no table is defined"):
            act(tmp_path)


def test_missing_gradient_and_text_for_a_key_are_named(store: Store) -> None:
    store.define(ADS)
    with pytest.raises(ShapeError, match="backward"):
        store.push("ads", np.arange(2), None)
    with pytest.raises(ConfigError, match="job_key must be bytes"):
        RemoteStore(["127.0.0.1:80"], job_key="text")  # type: ignore[arg-type]


def test_transport_comes_from_the_launcher_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEFLEET_TRANSPORT", "plain")
    with NativeServers(1, transport="plain") as servers:
        with RemoteStore(servers.endpoints, job_key=JOB_KEY) as store:
            assert store.stats()
        with pytest.raises(AuthError):
            RemoteStore(servers.endpoints, job_key=JOB_KEY, transport="tls")
