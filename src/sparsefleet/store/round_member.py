"""Who takes part in rounds and clocks."""

from __future__ import annotations

from dataclasses import dataclass

from sparsefleet import _core
from sparsefleet.field_checks import require, require_int

MAX_GROUP_SIZE = 65536


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundMember:
    """One of ``size`` workers that take optimizer steps together, see ``Store.push_round``.

    >>> from sparsefleet.store import RoundMember
    >>> RoundMember(rank=1, size=4).group
    'train'
    """

    group: str = "train"
    """The workers that belong together. A group that all have left may begin anew."""

    rank: int = 0
    """This worker's place; gradients are added in order of rank."""

    size: int = 1
    """Workers of the group; all name the same number."""

    go_on_without_lost: bool = False
    """A member whose connection is lost counts as having left. Else the round of the others ends
    with ``PeerLostError`` naming it."""

    def __post_init__(self) -> None:
        is_name = isinstance(self.group, str) and 1 <= len(self.group.encode()) <= 255
        require(is_name, self, "group", "a text of 1 to 255 bytes")
        require_int(self, "size", 1, MAX_GROUP_SIZE)
        require_int(self, "rank", 0, self.size - 1)


def lower_member(member: RoundMember) -> _core.RoundMember:
    """The member as native code takes it."""
    return _core.RoundMember(member.group, member.rank, member.size, member.go_on_without_lost)
