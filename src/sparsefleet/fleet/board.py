"""Where workers leave notes for each other and tell how far they are.

Servers keep a board for the workers of their job: every `Store` is one. Ranks without servers have
theirs in the store of torch.distributed by which they found each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch.distributed as dist

from sparsefleet.errors import DeadlineError, NotFoundError, PeerLostError
from sparsefleet.store import RoundMember

__all__ = ["Board", "RankBoard"]

_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.05
_ASK_FOR_LOST_S = 2.0


class Board(Protocol):
    """Notes by key, and clocks of the members of a group; see `Store`."""

    def put_note(self, key: str, value: bytes, *, timeout_s: float | None = None) -> None: ...

    def get_note(
        self, key: str, *, wait: bool = False, timeout_s: float | None = None
    ) -> bytes: ...

    def delete_note(self, key: str, *, timeout_s: float | None = None) -> None: ...

    def advance_clock(
        self,
        member: RoundMember,
        clock: int,
        *,
        bound: int | None = None,
        timeout_s: float | None = None,
    ) -> int: ...

    def leave_group(self, member: RoundMember, *, timeout_s: float | None = None) -> None: ...


class RankBoard:
    """The board of ranks without servers. Thread-safe.

    store: reaches all ranks.
    lost_ranks: names those that are silent; may take seconds, so it is asked in long waits only.

    >>> board = RankBoard(dist.HashStore(), lambda: [])
    >>> board.put_note("greeting", b"hello")
    >>> board.get_note("greeting")
    b'hello'
    """

    def __init__(
        self,
        store: dist.Store,
        lost_ranks: Callable[[], Collection[int]],
        *,
        timeout_s: float = 300.0,
    ) -> None:
        self._store = store
        self._lost_ranks = lost_ranks
        self._timeout_s = timeout_s

    def put_note(self, key: str, value: bytes, *, timeout_s: float | None = None) -> None:
        """Leaves a note for other ranks; replaces an older one."""
        del timeout_s
        with _naming_keeper():
            self._store.set(_note(key), value)  # type: ignore[arg-type]  # torch takes bytes, too

    def get_note(self, key: str, *, wait: bool = False, timeout_s: float | None = None) -> bytes:
        """The note, or NotFoundError; with `wait`, as soon as somebody puts it."""
        if wait:
            self._wait_for({_note(key): None}, timeout_s, f"the note '{key}'")
        with _naming_keeper():
            if not self._store.check([_note(key)]):
                raise NotFoundError(f"there is no note '{key}'")
            return self._store.get(_note(key))

    def delete_note(self, key: str, *, timeout_s: float | None = None) -> None:
        """Removes the note; NotFoundError if there is none."""
        del timeout_s
        with _naming_keeper():
            if not self._store.delete_key(_note(key)):
                raise NotFoundError(f"there is no note '{key}'")

    def advance_clock(
        self,
        member: RoundMember,
        clock: int,
        *,
        bound: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Reports that the member is at `clock`; with a bound, of 0, waits for all to be there.

        Clocks are advanced by one each time: a member that has reported a clock has seen all
        others at the one before, so that the report of that may go.
        """
        assert bound in (None, 0), "ranks without servers wait for each other at the same clock"
        with _naming_keeper():
            self._store.set(_clock(member, member.rank, clock), "")
        if bound is not None:
            others = [rank for rank in range(member.size) if rank != member.rank]
            keys = {_clock(member, rank, clock): rank for rank in others}
            self._wait_for(keys, timeout_s, f"'{member.group}'")
            with _naming_keeper():
                self._store.delete_key(_clock(member, member.rank, clock - 1))
        return clock

    def leave_group(self, member: RoundMember, *, timeout_s: float | None = None) -> None:
        """Nothing to do: a rank that is not there is missed only by those that wait for it."""

    def _wait_for(self, keys: dict[str, int | None], timeout_s: float | None, what: str) -> None:
        """Until all keys are there; each is set by its rank, or by anybody."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        began = asked = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        while True:
            with _naming_keeper():
                keys = {key: rank for key, rank in keys.items() if not self._store.check([key])}
            if not keys:
                return
            missing = [rank for rank in keys.values() if rank is not None]
            now = time.monotonic()
            if now - began >= limit_s:
                self._refuse_lost(missing, what)
                who = f" for {_ranks(missing)}" if missing else ""
                raise DeadlineError(f"{what}: waited {limit_s:g} s{who}")
            if now - asked >= _ASK_FOR_LOST_S:
                self._refuse_lost(missing, what)
                asked = time.monotonic()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _refuse_lost(self, missing: Iterable[int], what: str) -> None:
        lost = sorted(set(missing) & set(self._lost_ranks()))
        if lost:
            raise PeerLostError(f"{what}: {_ranks(lost)} {'is' if len(lost) == 1 else 'are'} lost")


def _note(key: str) -> str:
    return f"note/{key}"


def _clock(member: RoundMember, rank: int, clock: int) -> str:
    return f"clock/{member.group}/{rank}/{clock}"


def _ranks(ranks: Collection[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


@contextmanager
def _naming_keeper() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch's, of a connection that broke
        raise PeerLostError(
            f"rank 0, which keeps the meeting point of the ranks, does not answer: {error}"
        ) from error
