"""A store's connection to whatever holds its tables, and coordination between workers."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparsefleet import _core
from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import is_number, require, require_int

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RoundMember", "StoreConnection", "lower_member"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundMember:
    """One of ``size`` workers that take optimizer steps together; see ``Store.push_round``.

    >>> from sparsefleet.store import RoundMember
    >>> RoundMember(rank=1, size=4).group
    'train'
    """

    group: str = "train"
    """Name of the group. It may start again once all members have left."""

    rank: int = 0
    """This worker's position; gradients are added in rank order."""

    size: int = 1
    """Number of workers in the group, the same for all members."""

    continue_without_lost: bool = False
    """If true, a member whose connection is lost is treated as having left. Otherwise, the other
    members get ``PeerLostError``, which names the lost member."""

    def __post_init__(self) -> None:
        most = _core.MAX_GROUP_NAME_BYTES
        is_name = isinstance(self.group, str) and 1 <= len(self.group.encode()) <= most
        require(is_name, self, "group", f"a text of 1 to {most} bytes")
        require_int(self, "size", 1, _core.MAX_GROUP_SIZE)
        require_int(self, "rank", 0, self.size - 1)


def lower_member(member: RoundMember) -> _core.RoundMember:
    """Return the native form of the member."""
    return _core.RoundMember(member.group, member.rank, member.size, member.continue_without_lost)


class StoreConnection:
    """Life cycle, barriers, notes, clocks and commands of a store; `Store` adds the tables.

    Thread-safe. Every call raises ``DeadlineError`` after ``timeout_s`` seconds.
    """

    def __init__(self, native: _core.Store, *, timeout_s: float) -> None:
        self._native = native
        self._timeout_s = _check_timeout(timeout_s)
        self.max_frame_bytes: int | None = None
        """The largest request to one server; None means there is no limit."""
        self._finalizer = weakref.finalize(self, _close_native, native, os.getpid())

    def close(self) -> None:
        """Close connections and free local tables. Idempotent; later calls raise an error."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_servers(self) -> int:
        """Return the number of servers that hold the tables; 1 for a LocalStore."""
        return self._native.num_servers

    @property
    def step(self) -> int:
        """The step that pushes record and ``shrink`` uses; by default the number of pushes.

        Workers with a common step counter set it to that counter.
        """
        return self._native.step

    @step.setter
    def step(self, value: int) -> None:
        if not 0 <= value < 2**63:
            raise ConfigError(f"step must be in 0..2**63 - 1, got {value}")
        self._native.step = value

    def stats(self, *, timeout_s: float | None = None) -> list[dict[str, float]]:
        """Return the counters of each server by name, e.g. ``stats()[0]["table.ads.rows"]``."""
        return self._native.stats(self._deadline(timeout_s))

    def command(
        self, server: int, name: str, body: bytes = b"", *, timeout_s: float | None = None
    ) -> bytes:
        """Send a command to the Python handlers of one server and return the reply.

        The handler runs exactly once, even if the request is retried; an error that the handler
        raises is raised here with the same class. A LocalStore answers only the commands for saving
        and loading.
        """
        return self._native.command(server, name, body, self._deadline(timeout_s))

    def shutdown(self, *, timeout_s: float | None = None) -> None:
        """Ask the servers to finish their work and exit. Does nothing in a LocalStore."""
        self._native.shutdown(self._deadline(timeout_s))

    def barrier(self, name: str, members: int, *, timeout_s: float | None = None) -> None:
        """Wait until workers have made ``members`` calls with this name, including this one."""
        self._native.barrier(name, members, self._deadline(timeout_s))

    def put_note(self, key: str, value: bytes, *, timeout_s: float | None = None) -> None:
        """Store a note (up to 64 KiB) for other workers, replacing an existing note."""
        self._native.put_note(key, value, self._deadline(timeout_s))

    def get_note(self, key: str, *, wait: bool = False, timeout_s: float | None = None) -> bytes:
        """Return the note with this key.

        If there is none, raise ``NotFoundError`` or, with ``wait``, wait until it exists.
        """
        return self._native.get_note(key, wait, self._deadline(timeout_s))

    def get_notes(
        self, keys: Sequence[str], *, timeout_s: float | None = None
    ) -> list[bytes | None]:
        """Return several notes with one request, in order, with None for missing notes."""
        return self._native.get_notes(list(keys), self._deadline(timeout_s))

    def delete_note(self, key: str, *, timeout_s: float | None = None) -> None:
        """Delete the note. Raises ``NotFoundError`` if there is no such note."""
        self._native.delete_note(key, self._deadline(timeout_s))

    def advance_clock(
        self,
        member: RoundMember,
        clock: int,
        *,
        bound: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Report the member's clock, which never decreases; return the sum of all clocks.

        The sum includes the last clock of members that have left, and 0 for members that have not
        reported yet.

        With ``bound``, waits until no active member is below ``clock - bound``, and raises
        ``PeerLostError`` if a member is lost in the meantime; see ``RoundMember``. A clock of 0
        without ``bound`` joins the group: from then on every server notices the member's loss.
        Raises ``NotOwnerError`` if a different live client has this rank.
        """
        if clock > 0:
            self._begin_loop()
        return self._native.advance_clock(
            lower_member(member), clock, bound, self._deadline(timeout_s)
        )

    def _begin_loop(self) -> None:
        """Prepare for a training loop; called before gradients are pushed or a clock advances."""

    def leave_group(self, member: RoundMember, *, timeout_s: float | None = None) -> None:
        """Leave the group, so no later round or clock waits for this member. Idempotent.

        When all members have left, the group is forgotten and may start again at any round number.
        If members may leave before taking part, use a new group name for each start
        (``"train/2"``). Raises ``NotOwnerError`` if a different live client has this rank.
        """
        self._native.leave_group(lower_member(member), self._deadline(timeout_s))

    def _deadline(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else _check_timeout(timeout_s)


def _close_native(native: _core.Store, pid: int) -> None:
    if os.getpid() != pid:  # a fork lacks the threads that closing would join
        return
    if getattr(sys, "last_value", None) is not None:  # the script fails with this error
        native.keep_session(True)
    native.close()


def _check_timeout(timeout_s: float) -> float:
    if not (is_number(timeout_s) and timeout_s > 0):
        raise ConfigError(f"timeout_s must be a finite number > 0, got {timeout_s!r}")
    return timeout_s
