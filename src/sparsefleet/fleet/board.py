"""A board where workers leave notes for each other and report their progress.

Servers keep a board for the workers of their job: every `Store` is one. Ranks without servers keep
it in the torch.distributed store through which they connected.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from sparsefleet.errors import DeadlineError, NotFoundError
from sparsefleet.store import RoundMember

if TYPE_CHECKING:
    from sparsefleet.collective import World
    from sparsefleet.collective.rendezvous import AnsweringStore

__all__ = ["Board", "RankBoard", "directory_of_servers"]

MODEL_DIR_NOTE = "fleet/model_dir"
"""The note that names the directory to load the tables from."""

_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.05
_ASK_FOR_LOST_S = 2.0


class Board(Protocol):
    """Holds notes by key, and each member's progress in a group (its clock); see `Store`."""

    def put_note(self, key: str, value: bytes, *, timeout_s: float | None = None) -> None: ...

    def get_note(
        self, key: str, *, wait: bool = False, timeout_s: float | None = None
    ) -> bytes: ...

    def get_notes(
        self, keys: Sequence[str], *, timeout_s: float | None = None
    ) -> list[bytes | None]: ...

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
    """The board for ranks without servers, kept in the store of their world. Not thread-safe."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def _store(self) -> AnsweringStore:
        return self._world.store

    def put_note(self, key: str, value: bytes, *, timeout_s: float | None = None) -> None:
        """Leave a note for other ranks, replacing an older note with this key."""
        del timeout_s
        with self._world.naming_lost(f"the note '{key}'"):
            self._store.set(_note(key), value)

    def get_note(self, key: str, *, wait: bool = False, timeout_s: float | None = None) -> bytes:
        """Return the note with this key.

        If there is none, raise NotFoundError or, with `wait`, wait until it exists.
        """
        what = f"the note '{key}'"
        if wait:
            self._wait_for({_note(key): None}, timeout_s, what)
        with self._world.naming_lost(what):
            if not self._store.check([_note(key)]):
                raise NotFoundError(f"there is no note '{key}' on the board")
            return self._store.get(_note(key))

    def get_notes(
        self, keys: Sequence[str], *, timeout_s: float | None = None
    ) -> list[bytes | None]:
        """Return several notes in order, with None for missing notes."""
        del timeout_s
        with self._world.naming_lost("notes of other ranks"):
            return [
                self._store.get(_note(key)) if self._store.check([_note(key)]) else None
                for key in keys
            ]

    def delete_note(self, key: str, *, timeout_s: float | None = None) -> None:
        """Remove the note. Raises NotFoundError if there is no such note."""
        del timeout_s
        with self._world.naming_lost(f"the note '{key}'"):
            if not self._store.delete_key(_note(key)):
                raise NotFoundError(f"there is no note '{key}' on the board")

    def advance_clock(
        self,
        member: RoundMember,
        clock: int,
        *,
        bound: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Report that the member is at `clock`; if `bound` is 0, wait until all members are.

        Clocks advance by one each time. A member that reports a clock has seen all other members at
        the previous clock, so its report for the previous clock can be deleted.
        """
        assert bound in (None, 0), "ranks without servers wait for each other at the same clock"
        what = f"'{member.group}'"
        with self._world.naming_lost(what):
            self._store.set(_clock(member, member.rank, clock), "")
        if bound is not None:
            others = [rank for rank in range(member.size) if rank != member.rank]
            keys = {_clock(member, rank, clock): rank for rank in others}
            self._wait_for(keys, timeout_s, what)
            with self._world.naming_lost(what):
                self._store.delete_key(_clock(member, member.rank, clock - 1))
        return clock

    def leave_group(self, member: RoundMember, *, timeout_s: float | None = None) -> None:
        """Do nothing, since other ranks notice an absent rank only when they wait for it."""

    def _wait_for(self, keys: Mapping[str, int | None], timeout_s: float | None, what: str) -> None:
        """Wait until all keys exist.

        keys: for each key, the rank that sets it, or None if any rank may set it.
        """
        limit_s = self._world.timeout_s if timeout_s is None else timeout_s
        began = asked = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        while True:
            with self._world.naming_lost(what):
                keys = {key: rank for key, rank in keys.items() if not self._store.check([key])}
            if not keys:
                return
            missing = [rank for rank in keys.values() if rank is not None]
            now = time.monotonic()
            is_late = now - began >= limit_s
            if is_late or now - asked >= _ASK_FOR_LOST_S:
                self._world.require_present(what, missing)
                asked = time.monotonic()
            if is_late:
                who = f" for rank {', '.join(map(str, missing))}" if missing else ""
                raise DeadlineError(f"{what}: gave up after waiting {limit_s:g} s{who}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def directory_of_servers(board: Board) -> str | None:
    """Return the model directory that servers load from, as noted on the board, or None."""
    try:
        return os.fsdecode(board.get_note(MODEL_DIR_NOTE))
    except NotFoundError:
        return None


def _note(key: str) -> str:
    return f"note/{key}"


def _clock(member: RoundMember, rank: int, clock: int) -> str:
    return f"clock/{member.group}/{rank}/{clock}"
