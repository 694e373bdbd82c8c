"""Ranks that exchange notes without servers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch.distributed as dist

from sparsefleet.errors import DeadlineError, NotFoundError, PeerLostError
from sparsefleet.fleet.board import RankBoard
from sparsefleet.fleet.meeting import Meeting
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.store import LocalStore


class StoreWorld:
    """A minimal World for a board: ranks are threads over one store."""

    timeout_s = 30.0

    def __init__(self, store: dist.Store, lost: int | None = None) -> None:
        self.store = store
        self._lost = lost

    def naming_lost(self, what: str) -> AbstractContextManager[None]:
        del what
        return nullcontext()

    def require_present(self, what: str, ranks: Sequence[int]) -> None:
        if self._lost in ranks:
            raise PeerLostError(f"{what}: rank {self._lost} is lost")


def board(store: dist.Store | None = None, lost: int | None = None) -> RankBoard:
    return RankBoard(StoreWorld(store or dist.HashStore(), lost))  # type: ignore[arg-type]


def meeting(board: RankBoard, rank: int, size: int = 3, wait_s: float = 30.0) -> Meeting:
    return Meeting(board, RoleInfo(kind="worker", index=rank, worker_num=size), wait_s=wait_s)


def test_ranks_gather_and_decide_as_workers_with_servers_do() -> None:
    store = dist.HashStore()

    def meet(rank: int) -> tuple[list[bytes], bytes | None]:
        met = meeting(board(store), rank)
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
        met = meeting(board(store), rank, size=2)
        for _ in range(20):
            met.barrier()
            met.all_gather(b"x")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(meet, range(2)))
    assert store.num_keys() <= 2 + 2


def test_missing_ranks_are_named() -> None:
    with pytest.raises(DeadlineError, match=r"gave up after waiting 0\.1 s for rank 1, 2"):
        meeting(board(), 0, wait_s=0.1).barrier()


def test_lost_ranks_are_named() -> None:
    with pytest.raises(PeerLostError, match="rank 2 is lost"):
        meeting(board(lost=2), 0, wait_s=0.1).barrier()


def test_a_note_that_is_not_there_is_reported() -> None:
    notes = board()
    with pytest.raises(NotFoundError, match="no note 'save/1'"):
        notes.get_note("save/1")
    with pytest.raises(NotFoundError, match="no note 'save/1'"):
        notes.delete_note("save/1")
    notes.put_note("save/1", b"\x00\xff")
    assert notes.get_note("save/1", wait=True) == b"\x00\xff"
    notes.delete_note("save/1")
    with pytest.raises(DeadlineError, match="the note 'save/1': gave up after"):
        notes.get_note("save/1", wait=True, timeout_s=0.05)


def test_several_notes_are_read_at_once_with_and_without_servers() -> None:
    with LocalStore() as local:
        for each in (local, board()):
            each.put_note("a", b"1")
            each.put_note("c", b"")
            assert each.get_notes(["c", "b", "a"]) == [b"", None, b"1"]
            assert each.get_notes([]) == []
