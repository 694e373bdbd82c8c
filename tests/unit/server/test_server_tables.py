"""A server's tables as a store in its process, with the calls of a local store."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from tests.support.servers import NativeServers

from sparsefleet import _core, optim
from sparsefleet.errors import ConfigError, ShapeError, UnknownTableError
from sparsefleet.store import Constant, DenseSpec, LocalStore, RemoteStore, TableSpec

KEYS = np.arange(1000)


def define(store: LocalStore | RemoteStore) -> None:
    sgd = optim.SGD(lr=1.0)
    for name in ("ads", "sites"):
        store.define(
            TableSpec(name=name, dim=2, optimizer=sgd, initializer=Constant(0.0), track_dirty=True)
        )
    store.define(DenseSpec(name="net", size=30, optimizer=optim.Adam(lr=0.1), min_block_size=1))


@pytest.fixture
def servers() -> Iterator[NativeServers]:
    with NativeServers(2) as running:
        yield running


@pytest.fixture
def store(servers: NativeServers) -> Iterator[RemoteStore]:
    with servers.connect() as connected:
        define(connected)
        yield connected


def read(cut: _core.Cut | _core.DenseCut) -> dict[int, float]:
    assert isinstance(cut, _core.Cut)
    rows: dict[int, float] = {}
    while (chunk := cut.next(64)) is not None:
        rows.update(zip(chunk[0].tolist(), chunk[1][:, 0].tolist(), strict=True))
    return rows


def push(store: LocalStore | RemoteStore, keys: np.ndarray) -> None:
    gradients = np.full((len(keys), 2), -1.0, np.float32)
    store.push_many(
        {"ads": (keys, gradients), "sites": (keys, gradients)},
        {"net": np.ones(30, np.float32)},
    )


def test_tables_of_the_servers_make_up_the_whole(
    servers: NativeServers, store: RemoteStore
) -> None:
    push(store, KEYS)
    views = [server.tables() for server in servers.servers]
    rows: dict[int, float] = {}
    begins, sizes = [], []
    for index, view in enumerate(views):
        assert view.table_names() == ["ads", "net", "sites"]
        cuts = view.open_cuts(False, False)
        own = read(cuts["ads"])
        assert all(_core.owner_of(key, 2) == index for key in own)
        rows |= own
        dense = cuts["net"]
        assert isinstance(dense, _core.DenseCut)
        begins.append(dense.begin)
        sizes.append(len(dense.values))
        assert dense.state.shape == (3, len(dense.values))
        np.testing.assert_array_equal(dense.state[2], 1)  # the steps so far
    assert rows == dict.fromkeys(range(1000), 1.0)
    assert begins == [0, sizes[0]]
    assert sum(sizes) == 30


def test_rows_imported_on_a_server_are_seen_by_clients(
    servers: NativeServers, store: RemoteStore
) -> None:
    push(store, KEYS)
    for index, server in enumerate(servers.servers):
        view = server.tables()
        view.clear("ads")
        assert view.info("ads", 1.0).size == 0
        own = np.array([key for key in range(20) if _core.owner_of(key, 2) == index], np.uint64)
        none = np.empty(0, np.float32)
        view.import_rows(
            "ads", own, np.full(2 * len(own), 7.0, np.float32), none, none.view(np.uint32), 1.0
        )
    rows = store.pull("ads", KEYS, train=False)
    np.testing.assert_array_equal(rows[:20], 7.0)
    np.testing.assert_array_equal(rows[20:], 0.0)


def test_dense_parts_with_their_state_go_from_servers_to_a_local_store(
    servers: NativeServers, store: RemoteStore
) -> None:
    push(store, KEYS)
    push(store, KEYS)
    with LocalStore() as local:
        define(local)
        for server in servers.servers:
            part = server.tables().read_dense_part("net")
            local._native.write_dense_part("net", part.begin, part.values, part.state)
        push(store, KEYS)
        push(local, KEYS)
        np.testing.assert_array_equal(local.pull_dense("net"), store.pull_dense("net"))
        local._native.write_dense_part("net", 28, np.zeros(2, np.float32), None)
        assert local.pull_dense("net")[27] != 0
        np.testing.assert_array_equal(local.pull_dense("net")[28:], 0)
        with pytest.raises(ShapeError, match=r"elements 29 \+ 2 are not among 0 to 30"):
            local._native.write_dense_part("net", 29, np.zeros(2, np.float32), None)


def test_cuts_of_changes_tell_what_was_removed() -> None:
    with LocalStore() as local:
        define(local)
        push(local, KEYS)
        native = local._native
        full = native.open_cuts(False, True)
        assert read(full["ads"]) == dict.fromkeys(range(1000), 1.0)
        assert isinstance(full["ads"], _core.Cut)
        assert full["ads"].removed().tolist() == []
        local.erase("ads", KEYS[:10])
        push(local, KEYS[5:7])
        delta = native.open_cuts(True, True)
        cut = delta["ads"]
        assert isinstance(cut, _core.Cut)
        assert cut.removed().dtype == np.uint64
        assert sorted(cut.removed().tolist()) == [0, 1, 2, 3, 4, 7, 8, 9]
        assert sorted(read(cut)) == [5, 6]
        assert sorted(cut.removed().tolist()) == [0, 1, 2, 3, 4, 7, 8, 9]  # also at the end
        after = native.open_cuts(True, True)["ads"]
        assert isinstance(after, _core.Cut)
        assert after.removed().tolist() == []


def test_cut_committed_by_its_reader_clears_nothing_before() -> None:
    with LocalStore() as local:
        define(local)
        push(local, KEYS[:20])
        native = local._native
        assert len(read(native.open_cuts(False, True)["ads"])) == 20
        local.erase("ads", KEYS[:4])
        push(local, KEYS[10:12])
        given_up = native.open_cuts(True, True, commit="explicit")["ads"]
        assert isinstance(given_up, _core.Cut)
        with pytest.raises(ConfigError, match="after its last row was read"):
            given_up.commit()
        assert sorted(read(given_up)) == [10, 11]
        given_up.close()
        with pytest.raises(ConfigError, match="closed"):
            given_up.commit()

        kept = native.open_cuts(True, True, commit="explicit")["ads"]
        assert isinstance(kept, _core.Cut)
        assert sorted(read(kept)) == [10, 11]
        push(local, KEYS[11:13])  # between the end and the commit: dirty for the next
        local.erase("ads", KEYS[4:5])
        assert sorted(kept.removed().tolist()) == [0, 1, 2, 3]
        kept.commit()
        kept.commit()
        assert sorted(kept.removed().tolist()) == [0, 1, 2, 3]
        after = native.open_cuts(True, True)["ads"]
        assert isinstance(after, _core.Cut)
        # Row 10 stays dirty if it took the place of row 4, which depends on the table's salt.
        assert {11, 12} <= read(after).keys() <= {10, 11, 12}
        assert after.removed().tolist() == [4]
        with pytest.raises(ConfigError, match="'at_end' or 'explicit', got 'never'"):
            native.open_cuts(True, True, commit="never")


def test_cut_that_commits_at_its_end_takes_no_commit() -> None:
    with LocalStore() as local:
        define(local)
        cut = local._native.open_cuts(False, True)["ads"]
        assert isinstance(cut, _core.Cut)
        with pytest.raises(ConfigError, match="commits automatically at its end"):
            cut.commit()


def test_no_push_is_split_by_a_cut_through_all_tables(
    servers: NativeServers, store: RemoteStore
) -> None:
    view = servers.servers[0].tables()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            push(store, KEYS[:50])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            cuts = view.open_cuts(False, False)
            assert read(cuts["ads"]) == read(cuts["sites"])
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)


def test_spec_of_a_table_is_the_one_it_was_defined_with(
    servers: NativeServers, store: RemoteStore
) -> None:
    view = servers.servers[0].tables()
    ads = view.spec("ads")
    assert isinstance(ads, _core.SparseSpec)
    assert (ads.name, ads.dim, ads.track_dirty) == ("ads", 2, True)
    net = view.spec("net")
    assert isinstance(net, _core.DenseSpec)
    assert (net.size, net.optimizer.kind) == (30, _core.OptimizerKind.adam)
    with pytest.raises(UnknownTableError, match="'none'"):
        view.spec("none")


def test_tables_outlive_their_server() -> None:
    with NativeServers() as servers, servers.connect() as store:
        define(store)
        push(store, KEYS)
        view = servers.servers[0].tables()
        cut = view.open_cuts(False, False)["ads"]
    del servers
    assert len(read(cut)) == 1000
    assert view.info("ads", 1.0).size == 1000


def test_store_on_servers_has_none_of_it(store: RemoteStore) -> None:
    with pytest.raises(ConfigError, match="open_cuts: the tables of this store are on servers"):
        store._native.open_cuts(False, False)
    cut = store._native.open_cut("ads", False, False, 10.0)
    for _ in range(2):
        with pytest.raises(ConfigError, match="removed keys are only known on the server"):
            cut.removed()
        assert read(cut) == {}  # also at the end


def test_cut_closed_before_its_end_does_not_pretend_that_nothing_was_removed() -> None:
    with LocalStore() as local:
        define(local)
        push(local, KEYS[:10])
        read(local._native.open_cuts(False, True)["ads"])
        local.erase("ads", KEYS[:5])
        cut = local._native.open_cuts(True, True)["ads"]
        assert isinstance(cut, _core.Cut)
        cut.close()
        with pytest.raises(ConfigError, match="closed before its end"):
            cut.removed()


def test_state_of_a_dense_part_that_lies_the_other_way_is_refused() -> None:
    with LocalStore() as local:
        define(local)
        native = local._native
        state = native.read_dense_part("net").state
        values = np.zeros(30, np.float32)
        turned = np.ascontiguousarray(state.T)
        with pytest.raises(ShapeError, match=r"state of \[S, 30\], got \[30, 3\]"):
            native.write_dense_part("net", 0, values, turned)
        native.write_dense_part("net", 0, values, state)


def test_tables_that_are_named_are_cut_alone() -> None:
    with LocalStore() as local:
        define(local)
        local.define(TableSpec(name="plain", dim=2))
        push(local, KEYS[:5])
        native = local._native
        cuts = native.open_cuts(True, True, tables=["net", "ads"])
        assert sorted(cuts) == ["ads", "net"]
        assert len(read(cuts["ads"])) == 5
        assert len(read(native.open_cuts(True, True, tables=["sites"])["sites"])) == 5
        with pytest.raises(UnknownTableError, match="'none'"):
            native.open_cuts(False, False, tables=["ads", "none"])


def test_changes_of_a_table_that_does_not_track_them_are_refused() -> None:
    with LocalStore() as local:
        local.define(TableSpec(name="plain", dim=2))
        with pytest.raises(ConfigError, match="'plain'.*track_dirty"):
            local._native.open_cuts(True, True)
