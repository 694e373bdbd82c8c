"""A worker that takes part in rounds and clocks."""

from __future__ import annotations

from dataclasses import dataclass

from sparsefleet import _core
from sparsefleet.field_checks import require, require_int


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
