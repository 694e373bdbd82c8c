"""Servers killed at any moment and restarted: no acknowledged update is lost or applied twice."""

from __future__ import annotations

import dataclasses
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.server_process import DEADLINE_S, ServerProcess

from sparsefleet import optim
from sparsefleet.errors import SparseFleetError
from sparsefleet.server.command_loop import pack_body, unpack_body
from sparsefleet.store import (
    AdmitByProbability,
    Constant,
    Evict,
    LocalStore,
    RemoteStore,
    RemoteStoreConfig,
    RoundMember,
    RowDtype,
    TableSpec,
)
from sparsefleet.store.store_save import Base, StoreSave

KEYS = np.arange(60)
CONFIG = RemoteStoreConfig(timeout_s=DEADLINE_S, failover_wait_s=DEADLINE_S)


class DurableServers:
    """Servers with logs below `place`; `kill` ends them and restarts them on their ports."""

    def __init__(self, place: Path, durability: str, count: int) -> None:
        self._place, self._durability, self._count = place, durability, count
        self._lock = threading.Lock()
        self._processes = [self._start(index, "127.0.0.1:0") for index in range(count)]
        self.endpoints = [process.wait_ready() for process in self._processes]
        self.kills = 0

    def _start(self, index: int, endpoint: str) -> ServerProcess:
        flags = ["--endpoint", endpoint, "--index", str(index), "--num-servers", str(self._count)]
        flags += ["--durability", self._durability]
        return ServerProcess(*flags, "--log-dir", str(self._place / f"server-{index}"))

    def kill(self, index: int) -> None:
        with self._lock:
            self.end(index)
            self.start(index)
            self.kills += 1

    def end(self, index: int) -> None:
        self._processes[index].kill()

    def start(self, index: int) -> None:
        self._processes[index] = self._start(index, self.endpoints[index])
        self._processes[index].wait_ready()

    def close(self) -> None:
        for process in self._processes:
            process.kill()

    @contextmanager
    def killed_now_and_then(self, seed: int) -> Iterator[None]:
        is_over = threading.Event()
        chance = random.Random(seed)

        def kill() -> None:
            while not is_over.wait(chance.random() * 0.3):
                self.kill(chance.randrange(self._count))

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


@pytest.fixture
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DurableServers]:
    made = DurableServers(tmp_path, getattr(request, "param", "process"), 2)
    yield made
    made.close()


def _ledger() -> TableSpec:
    return TableSpec(name="t", dim=2, optimizer=optim.SGD(lr=1.0), initializer=Constant(0.0))


@pytest.mark.parametrize("servers", ["process", "disk"], indirect=True)
def test_each_push_over_kills_adds_exactly_one(servers: DurableServers) -> None:
    pushes = 0
    with RemoteStore(servers.endpoints, config=CONFIG) as store:
        store.define(_ledger())
        gradients = np.full((len(KEYS), 2), -1.0, np.float32)
        with servers.killed_now_and_then(seed=5):
            while servers.kills < 4:
                store.push("t", KEYS, gradients)
                pushes += 1
        assert store.pull("t", KEYS, train=False).tolist() == [[pushes] * 2] * len(KEYS)
        stats = store.stats()
    assert all(one["log.replayed_records"] > 0 for one in stats)
    assert pushes > 20


@pytest.mark.parametrize("row_dtype", ["float32", "int8"])
def test_rounds_over_kills_give_the_same_bits(servers: DurableServers, row_dtype: RowDtype) -> None:
    spec = TableSpec(
        name="t",
        dim=2,
        optimizer=optim.Adagrad(lr=0.1),
        initializer=Constant(0.5),
        row_dtype=row_dtype,
    )
    found = []
    for is_killed in (False, True):
        spec_here = TableSpec(**{**_fields(spec), "name": f"t{is_killed}"})
        with ExitStack() as stack:
            stores = [
                stack.enter_context(RemoteStore(servers.endpoints, name=f"w{rank}", config=CONFIG))
                for rank in range(2)
            ]
            for store in stores:
                store.define(spec_here)
            group = f"g{is_killed}"
            kills = servers.killed_now_and_then(seed=9) if is_killed else ExitStack()
            with kills:
                threads = [
                    threading.Thread(
                        target=_train_in_rounds, args=(store, rank, group, spec_here.name)
                    )
                    for rank, store in enumerate(stores)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            found.append(stores[0].pull(spec_here.name, KEYS, train=False))
    assert servers.kills > 0
    assert np.array_equal(found[0], found[1])


def _fields(spec: TableSpec) -> dict[str, object]:
    return {name: getattr(spec, name) for name in ("dim", "optimizer", "initializer", "row_dtype")}


def _train_in_rounds(store: RemoteStore, rank: int, group: str, table: str) -> None:
    draw = np.random.default_rng(rank)
    member = RoundMember(rank=rank, size=2, group=group)
    for number in range(1, 41):
        keys = draw.choice(KEYS, 20, replace=False)
        gradients = draw.standard_normal((20, 2)).astype(np.float32)
        store.push_round(member, number, {table: (keys, gradients)})
        time.sleep(0.01)  # so that kills come in between
    store.leave_group(member)


def test_mail_and_loads_outlive_a_kill(servers: DurableServers, tmp_path: Path) -> None:
    with RemoteStore(servers.endpoints, name="worker-0", config=CONFIG) as store:
        store.define(_ledger())
        store.push("t", KEYS, np.full((len(KEYS), 2), -3.0, np.float32))
        store.save(str(tmp_path / "saved"))
        store.push("t", KEYS, np.full((len(KEYS), 2), -1.0, np.float32))
        store.load(str(tmp_path / "saved"))
        for letter in (b"first", b"second"):
            head = {"room": "r", "to": 1, "wait_s": 0}
            assert unpack_body(store.command(0, "mail.put", pack_body(head, letter)))[0]["stored"]
        for index in range(2):
            servers.kill(index)
        assert store.pull("t", KEYS, train=False).tolist() == [[3.0] * 2] * len(KEYS)
        take = pack_body({"room": "r", "to": 1, "wait_s": 0})
        assert unpack_body(store.command(0, "mail.take", take)) == (
            {"sizes": [5, 6]},
            b"firstsecond",
        )
        servers.kill(0)
        assert unpack_body(store.command(0, "mail.take", take))[0] == {"sizes": []}


def _save(store: RemoteStore, path: Path, base: Base | None = None) -> Base:
    save = StoreSave(store, path, base=base, track=True)
    save.open()
    save.write()
    return Base(str(path), save.commit({}, step=0).token)


def test_a_delta_after_kills_has_what_was_changed_and_removed(
    servers: DurableServers, tmp_path: Path
) -> None:
    spec = dataclasses.replace(_ledger(), track_dirty=True)
    with RemoteStore(servers.endpoints, config=CONFIG) as store:
        store.define(spec)
        store.push("t", KEYS, np.full((len(KEYS), 2), -1.0, np.float32))
        base = _save(store, tmp_path / "full")
        for index in range(2):
            servers.kill(index)
        store.push("t", KEYS[:5], np.full((5, 2), -1.0, np.float32))
        assert store.erase("t", KEYS[10:13]) == 3
        for index in range(2):
            servers.kill(index)
        changed = np.concatenate([rows.keys for rows in store.rows("t", only_dirty=True)])
        # The new process does not know which rows were saved, so the delta has more than it needs.
        assert set(KEYS[:5].tolist()) <= set(changed.tolist())
        _save(store, tmp_path / "delta", base)
        wanted = store.pull("t", KEYS, train=False)
        with LocalStore() as copy:
            copy.define(spec)
            copy.load(str(tmp_path / "delta"))
            assert np.array_equal(copy.pull("t", KEYS, train=False), wanted)
            assert not copy.contains("t", KEYS[10:13]).any()


def test_rows_born_by_pulls_by_chance_are_the_same_after_a_kill(servers: DurableServers) -> None:
    spec = TableSpec(name="t", dim=2, initializer=Constant(5.0), admission=AdmitByProbability(0.3))
    with RemoteStore(servers.endpoints, config=CONFIG) as store:
        store.define(spec)
        for _ in range(2):
            before = store.pull("t", KEYS)
            for index in range(2):
                servers.kill(index)
            after = store.pull("t", KEYS, train=False)
            assert np.array_equal(after, before)
            assert 0 < np.count_nonzero(after[:, 0]) < len(KEYS)


def test_shrinking_counts_touches_and_removals_from_before_a_kill(servers: DurableServers) -> None:
    spec = dataclasses.replace(_ledger(), eviction=Evict(untouched_steps=3))
    with RemoteStore(servers.endpoints, config=CONFIG) as store:
        store.define(spec)
        store.push("t", KEYS, np.full((len(KEYS), 2), -1.0, np.float32))
        for _ in range(5):
            store.push("t", KEYS[:20], np.full((20, 2), -1.0, np.float32))
        for index in range(2):
            servers.kill(index)
        assert store.shrink("t") == len(KEYS) - 20
        for index in range(2):
            servers.kill(index)
        assert sum(len(rows.keys) for rows in store.rows("t")) == 20
        assert store.version("t") == 6


def test_a_work_list_hands_out_each_file_once_over_kills(servers: DurableServers) -> None:
    files = [[f"part-{number}", []] for number in range(6)]
    place = {"list": "train", "epoch": 1}

    def ask(store: RemoteStore, name: str, **words: object) -> dict[str, Any]:
        return unpack_body(store.command(0, f"work.{name}", pack_body({**place, **words})))[0]

    with ExitStack() as stack:
        stores = [
            stack.enter_context(RemoteStore(servers.endpoints, name=f"worker-{n}", config=CONFIG))
            for n in range(2)
        ]
        for store in stores:
            ask(store, "begin", num_workers=2, files=files)
        taken = []
        for number in range(6):
            taken.append(ask(stores[number % 2], "take", keep_going=False)["path"])
            if number % 2:
                servers.kill(0)
        assert sorted(taken) == [path for path, _ in files]


def test_a_successor_learns_what_is_applied(servers: DurableServers) -> None:
    gradients = np.full((len(KEYS), 2), -1.0, np.float32)
    config = dataclasses.replace(CONFIG, session="job/worker-0")
    first = RemoteStore(servers.endpoints, config=config)
    first.define(_ledger())
    first.push_many({"t": (KEYS, gradients)}, data=[(7, 0, 3, 4)])
    servers.kill(0)
    with RemoteStore(servers.endpoints, config=config) as second:
        assert second.applied_data() == [[(7, 0, 3, 4)]] * 2
        assert second.push_many({"t": (KEYS, gradients)}, data=[(7, 0, 3, 4)]).applied == 0
        assert second.push_many({"t": (KEYS, gradients)}, data=[(7, 0, 4, 5)]).applied == len(KEYS)
        assert second.pull("t", KEYS, train=False).tolist() == [[2.0] * 2] * len(KEYS)
    first.close()


def test_a_wait_lasts_as_long_as_a_launcher_restarts_the_server(
    servers: DurableServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEFLEET_LOG_DIR", str(tmp_path))
    note = tmp_path / "server-1.restarting"
    config = RemoteStoreConfig(timeout_s=0.5, failover_wait_s=1.0, peer_timeout_s=2.5)
    gradients = np.full((len(KEYS), 2), -1.0, np.float32)
    with RemoteStore(servers.endpoints, config=config) as store:
        store.define(_ledger())
        servers.end(1)
        with pytest.raises(SparseFleetError, match="no launcher on this machine is restarting it"):
            store.push("t", KEYS, gradients)
        note.write_text("the launcher restarted it 1 s ago")
        pushed: list[int] = []
        pushing = threading.Thread(
            target=lambda: pushed.append(store.push("t", KEYS, gradients).applied)
        )
        pushing.start()
        for _ in range(15):  # longer than both timeouts
            pushing.join(0.3)
            assert pushing.is_alive()
            note.touch()
        servers.start(1)
        pushing.join(DEADLINE_S)
        assert pushed == [len(KEYS)]
        servers.end(1)
        os.utime(note, (1.0, 1.0))
        with pytest.raises(SparseFleetError, match="restarted it 1 s ago, but has not reported"):
            store.push("t", KEYS, gradients)


def test_without_durability_a_restarted_server_is_reported(tmp_path: Path) -> None:
    servers = DurableServers(tmp_path, "off", 1)
    try:
        with RemoteStore(servers.endpoints, config=CONFIG) as store:
            store.define(_ledger())
            servers.kill(0)
            with pytest.raises(SparseFleetError, match="restarted"):
                store.push("t", KEYS, np.zeros((len(KEYS), 2), np.float32))
    finally:
        servers.close()
