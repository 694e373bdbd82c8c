"""Ranks that meet without servers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from sparsefleet.errors import DeadlineError, NotFoundError, PeerLostError
from sparsefleet.fleet.board import RankBoard
from sparsefleet.fleet.meeting import Meeting
from sparsefleet.fleet.role_info import RoleInfo


def nobody_lost() -> list[int]:
    return []


def meeting(store: dist.Store, rank: int, size: int = 3, wait_s: float = 30.0) -> Meeting:
    role = RoleInfo(kind="worker", index=rank, worker_num=size)
    return Meeting(RankBoard(store, nobody_lost), role, wait_s=wait_s)


def test_ranks_gather_and_decide_as_workers_with_servers_do() -> None:
    store = dist.HashStore()

    def meet(rank: int) -> tuple[list[bytes], bytes | None]:
        met = meeting(store, rank)
        for _ in range(3):
            met.barrier()
        large = met.all_gather(bytes([rank]) * (rank * 100_000))
        return large, met.decide(b"%d" % rank, lambda given: b"-".join(given))

    with ThreadPoolExecutor(3) as pool:
        for large, answer in pool.map(meet, range(3)):
            assert [len(part) for part in large] == [0, 100_000, 200_000]
            assert answer == b"0-1-2"


def test_what_was_met_for_leaves_no_more_than_the_last_clocks() -> None:
    store = dist.HashStore()

    def meet(rank: int) -> None:
        met = meeting(store, rank, size=2)
        for _ in range(20):
            met.barrier()
            met.all_gather(b"x")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(meet, range(2)))
    assert store.num_keys() <= 2 + 2


def test_who_does_not_come_is_named() -> None:
    with pytest.raises(DeadlineError, match=r"waited 0\.1 s for ranks 1, 2"):
        meeting(dist.HashStore(), 0, wait_s=0.1).barrier()


def test_who_is_lost_is_named() -> None:
    board = RankBoard(dist.HashStore(), lambda: [2])
    role = RoleInfo(kind="worker", index=0, worker_num=3)
    with pytest.raises(PeerLostError, match="rank 2 is lost"):
        Meeting(board, role, wait_s=0.1).barrier()


def test_a_note_that_is_not_there_is_told() -> None:
    board = RankBoard(dist.HashStore(), nobody_lost)
    with pytest.raises(NotFoundError, match="no note 'save/1'"):
        board.get_note("save/1")
    with pytest.raises(NotFoundError, match="no note 'save/1'"):
        board.delete_note("save/1")
    board.put_note("save/1", b"\x00\xff")
    assert board.get_note("save/1", wait=True) == b"\x00\xff"
    board.delete_note("save/1")
    with pytest.raises(DeadlineError, match="the note 'save/1': waited"):
        board.get_note("save/1", wait=True, timeout_s=0.05)
