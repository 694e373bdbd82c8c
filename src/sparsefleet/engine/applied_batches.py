"""Tracks which data in a pass the servers have applied, for a process that resumes the pass."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from sparsefleet.modes.mode_setting import ROUNDS, SOURCES, BatchOrigin, Interval
from sparsefleet.store.rows import DataMark

__all__ = ["AppliedBatches", "Interval"]

_Ranges = list[tuple[int, int]]


class AppliedBatches:
    """The mini-batches that all servers have applied, and those that only some have applied.

    Mini-batches are identified by their position in the pass, or by their records in files.

    servers: the result of `RemoteStore.applied_data`. epoch: the number of the pass in that result.
    kinds: the streams in which servers must have applied a mini-batch for it to be done; see
        `Mode.data_streams`.

    >>> applied = AppliedBatches([[(0, 7, 0, 4)], [(0, 7, 0, 3)]], epoch=7, kinds=(0,))
    >>> applied.count, applied.is_done(3), applied.is_done(4), applied.origin(4).partial
    (3, True, False, frozenset({0}))
    """

    def __init__(
        self,
        servers: Sequence[Sequence[DataMark]],
        *,
        epoch: int,
        kinds: Sequence[int] = (),
        base: int = 0,
    ) -> None:
        self.base = base
        """Offset added to the stream numbers of this data; see `BatchOrigin.base`."""
        self.epoch = epoch
        """The number of the pass."""
        self._kinds = kinds
        self._servers = [[mark for mark in marks if mark[1] == epoch] for marks in servers]
        self._rounds = [_ranges(marks, ROUNDS) for marks in self._servers]
        self._everywhere = {kind: self._common(kind) for kind in kinds}
        self._some = {k: [_ranges(marks, k) for marks in self._servers] for k in kinds}
        self._done = _common(list(self._everywhere.values()))
        self.count = sum(end - begin for begin, end in self._done)
        """Number of mini-batches applied by all servers, if they are identified by position."""

    def is_done(self, number: int) -> bool:
        """Return whether all servers have applied the whole mini-batch `number`, counted from 1."""
        return _contains(self._done, number - 1)

    def origin(self, number: int) -> BatchOrigin:
        """Return the `BatchOrigin` to send to the servers with the push of mini-batch `number`."""
        applied = [k for k in self._kinds if _contains(self._everywhere[k], number - 1)]
        partial = [
            kind
            for kind, servers in self._some.items()
            if any(_contains(ranges, number - 1) for ranges in servers)
        ]
        return BatchOrigin(
            self.epoch, number, frozenset(applied), frozenset(partial), base=self.base
        )

    @property
    def has_partial_round(self) -> bool:
        """Return whether some servers have applied a round that other servers have not."""
        return len({ranges[-1][1] if ranges else None for ranges in self._rounds}) > 1

    @property
    def next_round(self) -> int | None:
        """Return the first round that not all servers have applied.

        Return None if no round was applied in this pass.
        """
        if not all(self._rounds):
            return None
        return min(ranges[-1][1] for ranges in self._rounds)

    # -- records of files ------------------------------------------------------------------------

    def records(self) -> list[Interval]:
        """Return the records that all servers have applied."""
        return [
            Interval(file, begin, end)
            for file in self._files()
            for begin, end in _common([self._common(_stream(k, file)) for k in self._kinds])
        ]

    def partial_records(self) -> list[BatchOrigin]:
        """Return the records that only some servers have applied.

        All records of one origin were applied by the same servers.
        """
        found = []
        for file in self._files():
            sides = {
                kind: [_ranges(marks, _stream(kind, file)) for marks in self._servers]
                for kind in self._kinds
            }
            every = [ranges for each in sides.values() for ranges in each]
            cuts = sorted({at for ranges in every for pair in ranges for at in pair})
            for begin, end in pairwise(cuts):
                has = [_contains(ranges, begin) for ranges in every]
                if any(has) and not all(has):
                    has_kind = {
                        kind: [_contains(ranges, begin) for ranges in each]
                        for kind, each in sides.items()
                    }
                    applied = frozenset(kind for kind, each in has_kind.items() if all(each))
                    partial = frozenset(kind for kind, each in has_kind.items() if any(each))
                    records = (Interval(file, begin, end),)
                    found.append(BatchOrigin(self.epoch, 0, applied, partial, records))
        return found

    def _files(self) -> list[int]:
        streams = {mark[0] for marks in self._servers for mark in marks}
        return sorted({stream // SOURCES - 1 for stream in streams if stream >= SOURCES})

    def _common(self, stream: int) -> _Ranges:
        return _common([_ranges(marks, stream) for marks in self._servers])


def _stream(kind: int, file: int) -> int:
    return kind + SOURCES * (1 + file)


def _ranges(marks: Iterable[DataMark], stream: int) -> _Ranges:
    return [(begin, end) for found, _, begin, end in marks if found == stream]


def _common(found: Sequence[_Ranges]) -> _Ranges:
    """Return the intersection of several lists of ranges, each sorted and disjoint."""
    if not found:
        return []
    common = found[0]
    for other in found[1:]:
        common = [
            (max(begin, first), min(end, last))
            for begin, end in common
            for first, last in other
            if max(begin, first) < min(end, last)
        ]
    return common


def _contains(ranges: _Ranges, position: int) -> bool:
    at = bisect_right(ranges, (position, 2**64)) - 1
    return at >= 0 and position < ranges[at][1]
