"""Rounds, clocks and watched changes while connections break and workers are lost."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.faults.cutting_proxy import CuttingProxy
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet import optim
from sparsefleet.errors import DeadlineError, NotOwnerError, PeerLostError, SparseFleetError
from sparsefleet.store import (
    Constant,
    PushResult,
    RemoteStore,
    RemoteStoreConfig,
    RoundMember,
    Store,
    TableSpec,
)

SUM = TableSpec(name="sum", dim=2, optimizer=optim.SGD(lr=1.0), initializer=Constant(0.0))
FAST = {"heartbeat_interval_s": 0.2, "peer_timeout_s": 1.5, "try_timeout_s": 1.0}
PROMPT_S = 20.0
KEYS = np.arange(30)


def push(
    store: Store,
    member: RoundMember,
    number: int,
    value: float = -1.0,
    rows: NDArray[np.float32] | None = None,
) -> PushResult:
    """Take part in a round; ``rows``: also request the rows of all keys after it."""
    gradients = np.full((len(KEYS), SUM.dim), value, np.float32)
    wanted = None if rows is None else {"sum": (KEYS, rows)}
    return store.push_round(member, number, {"sum": (KEYS, gradients)}, rows=wanted)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PROMPT_S
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        threading.Event().wait(0.01)


def requests(servers: NativeServers, name: str) -> float:
    return min(server.stats().get(f"server.requests.{name}", 0) for server in servers.servers)


@contextmanager
def behind_proxies(servers: NativeServers, name: str, **cuts: object) -> Iterator[RemoteStore]:
    """A client whose connections all go through proxies, ``store.proxies`` in the server order."""
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(CuttingProxy(server.port, **cuts))  # type: ignore[arg-type]
            for server in servers.servers
        ]
        config = RemoteStoreConfig(timeout_s=60.0, **{**FAST, "peer_timeout_s": 5.0})
        store = RemoteStore(
            [proxy.endpoint for proxy in proxies], name=name, job_key=JOB_KEY, config=config
        )
        store.proxies = proxies  # type: ignore[attr-defined]
        stack.callback(store.close)
        yield store


@contextmanager
def one_freezing(
    go_on: bool,
) -> Iterator[tuple[NativeServers, Store, RemoteStore, list[RoundMember]]]:
    """Two servers, a worker of rank 0, and one of rank 1 behind proxies that can freeze."""
    members = [RoundMember(rank=rank, size=2, continue_without_lost=go_on) for rank in range(2)]
    with NativeServers(2, peer_timeout_s=1.0) as servers:
        with servers.connect(name="worker-0", timeout_s=60.0) as store:
            store.define(SUM)
            with behind_proxies(servers, "worker-7") as lost:
                with ThreadPoolExecutor(1) as pool:
                    other: Future[PushResult] = pool.submit(push, lost, members[1], 1)
                    push(store, members[0], 1)
                    other.result(PROMPT_S)
                # Each client's second hello to a server belongs to its heartbeat connection.
                wait_until(lambda: requests(servers, "hello") >= 4)
                yield servers, store, lost, members
                for proxy in lost.proxies:  # type: ignore[attr-defined]
                    proxy.thaw()


def freeze(store: RemoteStore) -> None:
    for proxy in store.proxies:  # type: ignore[attr-defined]
        proxy.freeze()


def test_lost_member_ends_the_round_of_the_others_and_is_named() -> None:
    with one_freezing(go_on=False) as (_, store, lost, members):
        freeze(lost)
        for number in (2, 3):
            with pytest.raises(PeerLostError, match=r"rank 1 \('worker-7'\) was lost"):
                push(store, members[0], number)
        with pytest.raises(PeerLostError, match="worker-7"):
            store.advance_clock(members[0], 9, bound=1)
        np.testing.assert_array_equal(store.pull("sum", KEYS, train=False), np.ones((30, 2)))


def test_others_continue_without_a_lost_member_where_the_group_says_so() -> None:
    with one_freezing(go_on=True) as (_, store, lost, members):
        freeze(lost)
        for number in (2, 3):
            assert push(store, members[0], number, -4.0).applied == len(KEYS)
        assert store.advance_clock(members[0], 9, bound=1) == 9
        np.testing.assert_array_equal(store.pull("sum", KEYS, train=False), np.full((30, 2), 9.0))


@pytest.mark.parametrize("go_on", [False, True])
def test_successor_gets_in_once_its_predecessor_is_lost_and_not_before(go_on: bool) -> None:
    with one_freezing(go_on) as (servers, store, lost, members):
        lost.advance_clock(members[1], 7)
        with servers.connect(name="worker-7", timeout_s=60.0) as successor:
            successor.define(SUM)
            with pytest.raises(NotOwnerError, match=r"rank 1 belongs to client 'worker-7'"):
                successor.advance_clock(members[1], 0)
            freeze(lost)

            def is_let_in() -> bool:
                try:
                    successor.advance_clock(members[1], 0)
                except NotOwnerError:
                    return False
                return True

            wait_until(is_let_in)
            # This includes what the lost worker counted.
            assert successor.advance_clock(members[1], 2) == 9
            with ThreadPoolExecutor(1) as pool:
                other: Future[PushResult] = pool.submit(push, successor, members[1], 2)
                push(store, members[0], 2)
                other.result(PROMPT_S)
            np.testing.assert_array_equal(
                store.pull("sum", KEYS, train=False), np.full((30, 2), 2.0)
            )


def test_member_that_ends_without_leaving_is_missed() -> None:
    zero, one = (RoundMember(rank=rank, size=2) for rank in range(2))
    with NativeServers(2) as servers, servers.connect(name="worker-0", timeout_s=60.0) as store:
        store.define(SUM)
        other = servers.connect(name="worker-1")
        assert other.advance_clock(one, 1) == 1
        failure: list[SparseFleetError] = []

        def wait() -> None:
            try:
                store.advance_clock(zero, 5, bound=1)
            except SparseFleetError as error:
                failure.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_until(lambda: servers.servers[0].stats().get("server.requests.advance_clock", 0) >= 2)
        other.close()
        waiter.join(PROMPT_S)
        assert not waiter.is_alive()
        assert isinstance(failure[0], PeerLostError)
        assert "rank 1 ('worker-1')" in str(failure[0])


def test_deadline_names_the_clients_that_are_known() -> None:
    zero, one = (RoundMember(group="g", rank=rank, size=3) for rank in range(2))
    with NativeServers(1) as servers, servers.connect(name="worker-0") as store:
        store.define(SUM)
        with servers.connect(name="worker-1") as other:
            other.advance_clock(one, 1)
            with pytest.raises(
                DeadlineError,
                match=r"\(rank 0 \('worker-0'\)\), rank 1 \('worker-1'\), rank 2 did not",
            ):
                store.push_round(zero, 1, {}, timeout_s=0.4)


def test_rounds_over_breaking_connections_are_applied_once() -> None:
    rounds = 25
    with NativeServers(2) as servers, ExitStack() as stack:
        stores = [
            stack.enter_context(
                behind_proxies(servers, f"worker-{rank}", cuts=25, bytes_before_cut=(1500, 9000))
            )
            for rank in range(2)
        ]
        stores[0].define(SUM)

        def work(rank: int) -> list[PushResult]:
            member = RoundMember(rank=rank, size=2)
            results = []
            rows = np.empty((len(KEYS), SUM.dim), np.float32)
            for number in range(rounds):
                results.append(push(stores[rank], member, number, -2.0 * rank, rows))
                np.testing.assert_array_equal(rows, np.full((30, 2), number + 1))
            stores[rank].leave_group(member)
            return results

        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(work, range(2)))
        assert results[0] == results[1] == [PushResult(len(KEYS), 0, 0)] * rounds
        rows = stores[0].pull("sum", KEYS, train=False)
        np.testing.assert_array_equal(rows, np.full((30, 2), rounds))
        assert stores[0].version("sum") == rounds
        cuts_left = sum(proxy.cuts for store in stores for proxy in store.proxies)  # type: ignore[attr-defined]
        assert cuts_left < 100, "no connection was ever cut"


def test_changes_over_breaking_connections_are_handed_out_once() -> None:
    batches = 40
    with NativeServers(2) as servers, servers.connect() as pusher:
        pusher.define(SUM)
        with behind_proxies(servers, "watcher", cuts=30, bytes_before_cut=(1500, 6000)) as watcher:
            watcher.watch_changes("sum")
            counts: Counter[int] = Counter()
            for batch in range(batches):
                keys = np.arange(
                    batch * 50, batch * 50 + 60
                )  # ten of them appear again in the next
                pusher.push("sum", keys, np.full((60, 2), -1.0, np.float32))
                for taken, values in watcher.take_changes("sum"):
                    counts.update(taken.tolist())
                    assert (values >= 1.0).all()
            twice = {
                key for batch in range(1, batches) for key in range(batch * 50, batch * 50 + 10)
            }
            assert counts == {key: 1 + (key in twice) for key in range(batches * 50 + 10)}
            assert sum(proxy.cuts for proxy in watcher.proxies) < 60, "no connection was ever cut"  # type: ignore[attr-defined]


def test_changes_lost_with_a_failed_call_come_with_the_next() -> None:
    with NativeServers(1) as servers, servers.connect() as pusher:
        pusher.define(SUM)
        with behind_proxies(servers, "watcher") as watcher:
            watcher.define(SUM)
            watcher.watch_changes("sum")
            pusher.push("sum", KEYS, np.full((30, 2), -1.0, np.float32))
            freeze(watcher)
            with pytest.raises((DeadlineError, PeerLostError)):
                list(watcher.take_changes("sum", timeout_s=0.5))
            watcher.proxies[0].thaw()  # type: ignore[attr-defined]
            # The request may have waited in the proxy: the server answers it, but nobody receives
            # the answer.
            wait_until(lambda: requests(servers, "take_changes") >= 1)
            taken = np.concatenate([keys for keys, _ in watcher.take_changes("sum")])
            np.testing.assert_array_equal(np.sort(taken), KEYS)
