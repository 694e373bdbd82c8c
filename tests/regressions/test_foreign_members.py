"""What belongs to a live worker cannot be taken or given up by another client.

Originally, a third client could remove a live worker from its group, and a stale one took its rank.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.support.servers import NativeServers

from sparsefleet import optim
from sparsefleet.data.progress import FileMark, FileToRead
from sparsefleet.errors import NotOwnerError, PeerLostError, SparseFleetError
from sparsefleet.fleet.fleet_sharding import FleetShard
from sparsefleet.fleet.meeting import Meeting
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.modes.mode_setting import ModeSetting
from sparsefleet.modes.worker_group import WorkerGroup
from sparsefleet.store import Constant, RoundMember, Store, TableSpec

SUM = TableSpec(name="sum", dim=1, optimizer=optim.SGD(lr=1.0), initializer=Constant(0.0))
KEY = np.array([5])
ZERO, ONE = (RoundMember(group="train", rank=rank, size=2) for rank in range(2))


def push(store: Store, member: RoundMember, number: int, gradient: float) -> None:
    store.push_round(member, number, {"sum": (KEY, np.full((1, 1), gradient, np.float32))})


def together(*calls: Callable[[], object]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result(60)


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.leave_group(ONE),
        lambda store: store.advance_clock(ONE, 9),
        lambda store: store.advance_clock(ONE, 0),
        lambda store: push(store, ONE, 2, -100.0),
    ],
    ids=["leave", "advance", "join", "push"],
)
def test_other_clients_cannot_act_for_a_live_worker(act: Callable[[Store], None]) -> None:
    with (
        NativeServers(2) as servers,
        servers.connect(name="worker-0") as first,
        servers.connect(name="worker-1") as second,
    ):
        first.define(SUM)
        second.define(SUM)
        together(lambda: push(first, ZERO, 1, -1.0), lambda: push(second, ONE, 1, -3.0))
        with servers.connect(name="worker-1") as stale:
            stale.define(SUM)
            wanted = r"'train'.* rank 1 belongs to client 'worker-1' \(session \d+\).* alive"
            with pytest.raises(NotOwnerError, match=wanted):
                act(stale)
        # The stale client has left, which does not affect the group.
        together(lambda: push(first, ZERO, 2, -1.0), lambda: push(second, ONE, 2, -3.0))
        assert first.pull("sum", KEY, train=False).item() == 4.0


def _setting(store: Store, index: int, *, go_on: bool = False) -> ModeSetting:
    return ModeSetting(
        store=store,
        tables={},
        dense={},
        worker_index=index,
        worker_num=2,
        group="model/1",
        continue_without_lost=go_on,
    )


def test_second_worker_of_an_index_is_refused_and_leaves_no_trace() -> None:
    with (
        NativeServers(1) as servers,
        servers.connect(name="worker-0") as first,
        servers.connect(name="worker-1") as second,
    ):
        groups = [
            WorkerGroup(_setting(store, index)) for index, store in enumerate((first, second))
        ]
        for group in groups:
            group.join()
        together(lambda: groups[0].next_pass(3), lambda: groups[1].next_pass(8))
        with servers.connect(name="worker-1") as stale:
            twin = WorkerGroup(_setting(stale, 1))
            with pytest.raises(NotOwnerError, match="rank 1"):
                twin.join()
            twin.close()
            meeting = Meeting(stale, RoleInfo(kind="worker", index=1, worker_num=2))
            second.advance_clock(RoundMember(group="fleet/job", rank=1, size=2), 0)
            with pytest.raises(NotOwnerError, match="rank 1"):
                meeting.all_gather(b"of another")
        assert second.get_note("model/1/worker-1") == b"1 8"
        with pytest.raises(SparseFleetError):
            second.get_note("fleet/job/gather/1/1")
        counts: list[int] = []
        together(
            lambda: counts.append(groups[0].next_pass(5)),
            lambda: counts.append(groups[1].next_pass(9)),
        )
        assert counts == [9, 9]
        for group in groups:
            group.close()


def test_pass_continues_without_a_lost_worker() -> None:
    with NativeServers(2) as servers, servers.connect(name="worker-0") as first:
        second = servers.connect(name="worker-1")
        groups = [
            WorkerGroup(_setting(store, index, go_on=True))
            for index, store in enumerate((first, second))
        ]
        for group in groups:
            group.join()
        second.close()
        assert [groups[0].next_pass(3), groups[0].next_pass(6)] == [3, 6]
        groups[0].close()


def test_files_of_a_live_worker_cannot_be_handed_back_by_its_namesake() -> None:
    with NativeServers(1) as servers, servers.connect(name="worker-0") as first:
        shard = FleetShard(first, "files", 1, keep_going=True)
        shard.begin([FileToRead("a"), FileToRead("b")], 2, again=False)
        taken = shard.take()
        assert taken == FileToRead("a")
        with servers.connect(name="worker-0") as namesake:
            other = FleetShard(namesake, "files", 1, keep_going=True)
            for ask in (other.take, other.finish, lambda: other._ask("work.release")):
                with pytest.raises(NotOwnerError, match="'files': worker 'worker-0' belongs to"):
                    ask()
        shard.report([FileMark("a", 0, 3, 3)])
        assert shard.take() == FileToRead("b")


def test_files_of_a_lost_worker_are_not_kept_by_its_namesake() -> None:
    """A worker counts as lost by the session that took the files, not by its name."""
    with NativeServers(1) as servers, servers.connect(name="worker-0") as first:
        files = [FileToRead("a"), FileToRead("b")]
        shard = FleetShard(first, "files", 1, keep_going=False)
        shard.begin(files, 2, again=False)
        second = servers.connect(name="worker-1")
        lost = FleetShard(second, "files", 1, keep_going=False)
        lost.begin(files, 2, again=False)
        assert lost.take() == FileToRead("a")
        with servers.connect(name="worker-1") as namesake:
            assert namesake.num_servers == 1
            second.close()
            with pytest.raises(PeerLostError, match="worker-1 was lost while it read a"):
                shard.take()
