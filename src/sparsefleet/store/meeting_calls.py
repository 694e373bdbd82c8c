"""How workers meet through a store: versions, barriers, notes, clocks."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sparsefleet import _core
from sparsefleet.store.round_member import RoundMember, lower_member


class MeetingCalls(ABC):
    """The calls of a store by which workers wait for one another; a part of ``Store``."""

    _native: _core.Store

    def version(self, table: str, *, timeout_s: float | None = None) -> int:
        """Pushes applied to the table so far; over servers, the lowest."""
        return self._native.version(table, self._deadline(timeout_s))

    def wait_version(self, table: str, at_least: int, *, timeout_s: float | None = None) -> None:
        """Returns when every server has applied ``at_least`` pushes to the table."""
        self._native.wait_version(table, at_least, self._deadline(timeout_s))

    def barrier(self, name: str, members: int, *, timeout_s: float | None = None) -> None:
        """Returns when ``members`` calls with this name have arrived, from whatever worker."""
        self._native.barrier(name, members, self._deadline(timeout_s))

    def put_note(self, key: str, value: bytes, *, timeout_s: float | None = None) -> None:
        """Leaves a small note (up to 64 KiB) for other workers; replaces an older one."""
        self._native.put_note(key, value, self._deadline(timeout_s))

    def get_note(self, key: str, *, wait: bool = False, timeout_s: float | None = None) -> bytes:
        """The note, or ``NotFoundError``; with ``wait``, as soon as somebody puts it."""
        return self._native.get_note(key, wait, self._deadline(timeout_s))

    def delete_note(self, key: str, *, timeout_s: float | None = None) -> None:
        """Removes the note; ``NotFoundError`` if there is none."""
        self._native.delete_note(key, self._deadline(timeout_s))

    def advance_clock(
        self,
        member: RoundMember,
        clock: int,
        *,
        bound: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Reports the member's count, which never goes down; returns the sum over all members.

        Members that have left count with their last one. With ``bound``, returns when no member
        that has not left is below ``clock - bound``; one that has not reported yet is at 0. A
        member that is lost meanwhile ends the wait with ``PeerLostError``, unless it counts as
        having left. A clock of 0 without ``bound`` lets the member join: every server then
        notices its loss.
        """
        return self._native.advance_clock(
            lower_member(member), clock, bound, self._deadline(timeout_s)
        )

    def leave_group(self, member: RoundMember, *, timeout_s: float | None = None) -> None:
        """The member takes part in no later round, and holds up no clock.

        A second time in a row does nothing. A group that all members have left is forgotten:
        it may begin anew, from any round number. A member that may leave without having taken
        part wants a group name of its own for each beginning (``"train/2"``).
        """
        self._native.leave_group(lower_member(member), self._deadline(timeout_s))

    @abstractmethod
    def _deadline(self, timeout_s: float | None) -> float:
        """The time that a call has, in seconds: the one given, or the store's own."""
