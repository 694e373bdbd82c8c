"""Who takes part in rounds and clocks."""

from __future__ import annotations

from dataclasses import dataclass

from sparsefleet.field_checks import require, require_bool, require_int

_MAX_MEMBERS = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundMember:
    """One worker of a group that steps together; see ``Store.push_round``.

    >>> RoundMember(rank=1, size=2).group
    'train'
    """

    group: str = "train"
    """Name of the group; the same on all members."""

    rank: int = 0
    """This member among all, from 0."""

    size: int = 1
    """Members at the beginning."""

    go_on_without_lost: bool = False
    """Whether a member whose connection is lost counts as having left; else rounds end with
    ``PeerLostError`` naming it."""

    def __post_init__(self) -> None:
        require(bool(self.group), self, "group", "some text")
        require_int(self, "size", 1, _MAX_MEMBERS)
        require_int(self, "rank", 0, self.size - 1)
        require_bool(self, "go_on_without_lost")
