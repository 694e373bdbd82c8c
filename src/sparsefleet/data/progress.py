"""Tracks which records of each file a pass has read, so that reading can resume."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError

_VERSION = 2
_SHARED_VERSION = 3  # the version in which several workers can share the records of one file
_MOST_SHARES = 1 << 16
_ALL = ((0, 2**63 - 1),)  # a file that was read to the end

Spans = tuple[tuple[int, int], ...]
"""Disjoint ranges of records [begin, end) of a file, in order, with gaps between them."""


END_OF_FILE = 2**62
"""The end of a span that reaches to the end of its file, whose length may be unknown."""


class FileMark(NamedTuple):
    """Records [begin, end) of a file that are in a batch or were skipped as malformed.

    A record is a line of a text file, a row of a columnar file, or an item of a generator.
    """

    path: str
    begin: int
    end: int
    total: int | None = None
    """Number of records in the whole file, once known."""


class FileToRead(NamedTuple):
    """A file, and the records in it that were already read."""

    path: str
    done: Spans = ()


class Share(NamedTuple):
    """The records of a file that one of `num` readers takes: every `num`-th, starting with `rank`.

    >>> Share(1, 3).positions(end=9, num_records=2)
    array([4, 7])
    """

    rank: int = 0
    num: int = 1

    def positions(self, end: int, num_records: int) -> NDArray[np.int64]:
        """Return the positions of the last `num_records` records of this share before `end`."""
        last = end - 1 - (end - 1 - self.rank) % self.num
        return last - self.num * np.arange(num_records - 1, -1, -1, dtype=np.int64)


WHOLE = Share()
"""The share that contains all records."""


class Progress:
    """Tracks which records of the files were handed out. Thread-safe.

    share: the records of each file that this reader takes.
    earlier: for files whose records were once divided among a different number of workers, the
        progress of each of those workers; one entry per such division.

    >>> progress = Progress()
    >>> progress.advance([FileMark("a", 0, 10, 10), FileMark("b", 0, 3), FileMark("b", 7, 9)])
    >>> progress.remaining(["a", "b", "c"])
    [FileToRead(path='b', done=((0, 3), (7, 9))), FileToRead(path='c', done=())]
    """

    def __init__(self, share: Share = WHOLE, earlier: Sequence[Sequence[Progress]] = ()) -> None:
        self.share = share
        self.earlier = tuple(tuple(workers) for workers in earlier)
        self._lock = threading.Lock()
        self._done: set[str] = set()
        self._spans: dict[str, Spans] = {}
        self._totals: dict[str, int] = {}
        self._is_over = False

    @property
    def has_begun(self) -> bool:
        """Whether any record has been handed out in this pass."""
        with self._lock:
            return not self._is_over and bool(self._done or self._spans or self.earlier)

    def advance(self, marks: Iterable[FileMark]) -> None:
        """Record that a batch with these records was handed out."""
        with self._lock:
            for mark in marks:
                if mark.path not in self._done:
                    self._take(mark)

    def end(self, files: Iterable[str]) -> None:
        """Record that the pass over these files is finished, so the next pass starts over."""
        with self._lock:
            self._done.update(files)
            self._spans.clear()
            self._totals.clear()
            self._is_over = True

    def remaining(self, files: list[str]) -> list[FileToRead]:
        """Return the files that have records left to read, in the order of `files`."""
        with self._lock:
            return [
                FileToRead(path, self._spans.get(path, ()))
                for path in files
                if path not in self._done
            ]

    def set_back(self, path: str, done: Spans) -> None:
        """Reset a file's progress, so that only the records in `done` count as handed out."""
        with self._lock:
            self._done.discard(path)
            self._totals.pop(path, None)
            self._spans[path] = done
            if not done:
                del self._spans[path]

    def gaps(self, files: Iterable[str]) -> dict[str, Spans]:
        """Return, for each file, the records that were read although an earlier record was not."""
        with self._lock:
            later = {path: [s for s in self._spans.get(path, ()) if s[0] > 0] for path in files}
        return {path: tuple(spans) for path, spans in later.items() if spans}

    def spans_of(self, path: str) -> Spans:
        """Return the records of a file that were handed out."""
        with self._lock:
            return _ALL if path in self._done else self._spans.get(path, ())

    def have_read(self, path: str, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which records of the file the workers of `earlier` have read, bool[B]."""
        found = np.zeros(len(positions), np.bool_)
        for workers in self.earlier:
            owners = positions % len(workers)
            for index, worker in enumerate(workers):
                for begin, end in worker.spans_of(path):
                    found |= (owners == index) & (positions >= begin) & (positions < end)
        return found

    def state(self) -> dict[str, Any]:
        """Return the progress as plain lists, dicts, strings and numbers."""
        with self._lock:
            state: dict[str, Any] = {
                "version": _VERSION,
                "is_over": self._is_over,
                "done": sorted(self._done),
                "records": {
                    path: [list(span) for span in spans]
                    for path, spans in sorted(self._spans.items())
                },
            }
        if self.share.num > 1:
            state |= {"version": _SHARED_VERSION, "share": list(self.share)}
        if self.earlier and not self._is_over:
            earlier = [[worker.state() for worker in workers] for workers in self.earlier]
            state |= {"version": _SHARED_VERSION, "earlier": earlier}
        return state

    @staticmethod
    def from_state(
        state: Mapping[str, Any], files: list[str] | None, share: Share = WHOLE
    ) -> Progress:
        """Return the progress saved in `state` for a reader that takes this share of each file.

        If the pass was finished, no records are treated as read. Raises ConfigError if the state
        names files that are not in `files`. Also accepts states of version 1.
        """
        saved = Progress._parse(state)
        known = set(files) if files is not None else None
        unknown = set() if known is None else saved._files() - known
        if unknown:
            raise ConfigError(
                f"the state names {min(unknown)}, which is not one of this Reader's files: list "
                "the same files"
            )
        if state.get("is_over"):
            return Progress(share)
        if saved.share in (share, WHOLE):
            progress, earlier = saved, list(saved.earlier)
        else:  # the state was saved by a worker with a different share
            progress = Progress()
            earlier = [*saved.earlier, _with_one(saved)]
        progress.share = share
        for workers in earlier:
            if len(workers) == share.num:
                progress._add(workers[share.rank])
        progress.earlier = tuple(workers for workers in earlier if len(workers) != share.num)
        for workers in progress.earlier:
            progress._add_common(workers)
        return progress

    @staticmethod
    def _parse(state: Mapping[str, Any]) -> Progress:
        """Return the progress stored in `state`, even if it is from a finished pass."""
        version = state.get("version") if isinstance(state, Mapping) else None
        if version not in (1, _VERSION, _SHARED_VERSION):
            raise ConfigError(
                f"expected a Reader state of version {_SHARED_VERSION} or earlier, got "
                f"{state!r:.200}"
            )
        try:
            progress = Progress(
                _checked_share(state.get("share", (0, 1))),
                [[Progress._parse(one) for one in workers] for workers in state.get("earlier", ())],
            )
            progress._done = set(state["done"])
            if version == 1:  # version 1 counted lines from the beginning of each file
                spans = {path: [(0, lines)] for path, lines in state["lines"].items()}
            else:
                spans = state["records"]
            for path, pairs in spans.items():
                progress._spans[str(path)] = _checked_spans(pairs)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"expected a Reader state, got {state!r:.200}") from error
        return progress

    def _files(self) -> set[str]:
        named = [worker._files() for workers in self.earlier for worker in workers]
        return self._done.union(self._spans, *named)

    def _add(self, other: Progress) -> None:
        """Add the records that `other` has handed out."""
        self._done |= other._done
        for path, spans in other._spans.items():
            for span in spans:
                self._spans[path] = add_span(self._spans.get(path, ()), span)
        for path in self._done & self._spans.keys():
            del self._spans[path]

    def _add_common(self, workers: Sequence[Progress]) -> None:
        """Add, for each file, the leading records that all of these workers have handed out."""
        for path in set().union(*(worker._files() for worker in workers)) - self._done:
            begun = [worker.spans_of(path)[:1] for worker in workers]
            ends = [spans[0][1] if spans and spans[0][0] == 0 else 0 for spans in begun]
            if min(ends) == _ALL[0][1]:
                self._done.add(path)
                self._spans.pop(path, None)
            elif min(ends) > 0:
                self._spans[path] = add_span(self._spans.get(path, ()), (0, min(ends)))

    def _take(self, mark: FileMark) -> None:
        if mark.total is not None:
            self._totals[mark.path] = mark.total
        spans = self._spans.get(mark.path, ())
        if mark.begin < mark.end:
            self._spans[mark.path] = spans = add_span(spans, (mark.begin, mark.end))
        total = self._totals.get(mark.path)
        if total is not None and (total == 0 or spans == ((0, total),)):
            self._done.add(mark.path)
            self._spans.pop(mark.path, None)
            del self._totals[mark.path]


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the states of several workers' readers of the same list of files.

    A reader of that list can load the result with any `worker_num`, and then reads the rest of its
    part. Records of a worker that finished its pass are treated as read, unless all workers had
    finished their passes.

    >>> merge_states(
    ...     [
    ...         {"version": 2, "is_over": True, "done": ["a"], "records": {}},
    ...         {"version": 2, "is_over": False, "done": [], "records": {"c": [[0, 7]]}},
    ...     ]
    ... )
    {'version': 2, 'is_over': False, 'done': ['a'], 'records': {'c': [[0, 7]]}}
    """
    merged = Progress()
    given = list(states)
    merged._is_over = bool(given) and all(state.get("is_over", False) for state in given)
    earlier: list[Sequence[Progress]] = []
    shares: dict[int, list[Progress]] = {}
    for state in given:
        one = Progress._parse(state)
        if one.share.num == 1:
            merged._add(one)
        else:
            workers = shares.setdefault(one.share.num, list(_with_one(Progress(one.share))))
            workers[one.share.rank]._add(one)
        for known in one.earlier:  # equal for all workers that resumed from the same state
            if not any(_are_equal(known, other) for other in earlier):
                earlier.append(known)
    merged.earlier = tuple(tuple(workers) for workers in (*earlier, *shares.values()))
    return merged.state()


def _with_one(saved: Progress) -> tuple[Progress, ...]:
    """Return the progress of all workers that shared files, given the progress of one of them."""
    index, num = saved.share
    workers = [Progress() for _ in range(num)]
    workers[index]._add(saved)
    return tuple(workers)


def _are_equal(some: Sequence[Progress], others: Sequence[Progress]) -> bool:
    return [one.state() for one in some] == [one.state() for one in others]


def add_span(spans: Spans, new: tuple[int, int]) -> Spans:
    """Return `spans` with one span added; spans that touch are merged.

    >>> add_span(((0, 3), (7, 9)), (3, 5))
    ((0, 5), (7, 9))
    """
    begin, end = new
    before = [span for span in spans if span[1] < begin]
    after = [span for span in spans if span[0] > end]
    touching = spans[len(before) : len(spans) - len(after)]
    if touching:
        begin, end = min(begin, touching[0][0]), max(end, touching[-1][1])
    return (*before, (begin, end), *after)


def missing_spans(spans: Spans, begin: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of [begin, end) that are not in `spans`.

    >>> missing_spans(((0, 3), (7, 9)), 2, 10)
    [(3, 7), (9, 10)]
    """
    missing = []
    for first, last in spans:
        if begin < min(first, end):
            missing.append((begin, min(first, end)))
        begin = max(begin, last)
    if begin < end:
        missing.append((begin, end))
    return missing


def _checked_spans(pairs: Iterable[Iterable[int]]) -> Spans:
    spans: Spans = ()
    for begin, end in pairs:
        if not 0 <= int(begin) < int(end):
            raise ValueError(f"a range of records must have 0 <= begin < end, got [{begin}, {end})")
        spans = add_span(spans, (int(begin), int(end)))
    return spans


def _checked_share(pair: Iterable[int]) -> Share:
    index, num = (int(number) for number in pair)
    if not 0 <= index < num <= _MOST_SHARES:
        raise ValueError(f"a share must have 0 <= index < count, got index {index} and count {num}")
    return Share(index, num)
