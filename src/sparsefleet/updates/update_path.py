"""Which updates of a log lead from where a reader is to the newest moment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sparsefleet.updates.update_name import UpdateName

__all__ = ["UpdatePath", "find_path"]


class UpdatePath(NamedTuple):
    """The updates to apply in order; a whole one comes first, if any."""

    names: list[UpdateName]
    missing: int | None = None
    """The first number after the path that the log lacks, though it has newer ones."""


def find_path(
    names: Iterable[UpdateName], at: tuple[int, str] | None, *, start_over: bool = False
) -> UpdatePath:
    """From `at` (number and moment; None: the export) to the newest update that can be reached.

    start_over: from the newest whole update, even if there are deltas from `at` on.

    >>> whole, one, two = (
    ...     UpdateName(kind, number, f"{number:016x}", "0" * 16)
    ...     for kind, number in [("whole", 1), ("delta", 2), ("delta", 4)]
    ... )
    >>> [name.sequence for name in find_path([one, whole], None).names]
    [1, 2]
    >>> path = find_path([two, one, whole], (1, "0" * 15 + "1"))
    >>> [name.sequence for name in path.names], path.missing
    ([2], 3)
    """
    deltas: dict[int, UpdateName] = {}
    wholes: dict[int, UpdateName] = {}
    moments: dict[int, set[str]] = {}
    for name in names:
        (deltas if name.kind == "delta" else wholes)[name.sequence] = name
        moments.setdefault(name.sequence, set()).add(name.moment)
    newest = max(moments, default=0)
    if at is not None and not start_over and _is_of_this_log(at, moments, newest):
        forward = _run(deltas, at[0])
        if at[0] + len(forward) == newest:
            return UpdatePath(forward)
        newest_whole = max(wholes, default=0)
        if newest_whole <= at[0] + len(forward):  # starting over leads no further
            return UpdatePath(forward, at[0] + len(forward) + 1)
    if not wholes:
        return UpdatePath([], 1 if newest else None)
    first = max(wholes)
    path = [wholes[first], *_run(deltas, first)]
    reached = path[-1].sequence
    return UpdatePath(path, None if reached == newest else reached + 1)


def _run(deltas: dict[int, UpdateName], after: int) -> list[UpdateName]:
    """Deltas without a gap, from the number after `after` on."""
    found: list[UpdateName] = []
    while (name := deltas.get(after + len(found) + 1)) is not None:
        found.append(name)
    return found


def _is_of_this_log(at: tuple[int, str], moments: dict[int, set[str]], newest: int) -> bool:
    """Whether the log has come by there; its older updates may have been removed."""
    number, moment = at
    return number <= newest and (number not in moments or moment in moments[number])
