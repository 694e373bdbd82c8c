"""Tracks which records of each file a pass has read, so that reading can resume."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sparsefleet.errors import ConfigError

_VERSION = 2

Spans = tuple[tuple[int, int], ...]
"""Disjoint ranges of records [begin, end) of a file, in order, with gaps between them."""


class FileMark(NamedTuple):
    """Records [begin, end) of a file that are in a batch, or were skipped as bad.

    A record is a line of a text file, a row of a columnar file, or an item of a generator.
    """

    path: str
    begin: int
    end: int
    total: int | None = None
    """Records in the whole file, once known."""


class FileToRead(NamedTuple):
    """A file, and which of its records were already read."""

    path: str
    done: Spans = ()


class Progress:
    """Which records of the files were handed out. Thread-safe.

    >>> progress = Progress()
    >>> progress.advance([FileMark("a", 0, 10, 10), FileMark("b", 0, 3), FileMark("b", 7, 9)])
    >>> progress.remaining(["a", "b", "c"])
    [FileToRead(path='b', done=((0, 3), (7, 9))), FileToRead(path='c', done=())]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: set[str] = set()
        self._spans: dict[str, Spans] = {}
        self._totals: dict[str, int] = {}
        self._is_over = False

    @property
    def has_begun(self) -> bool:
        """Whether anything has been handed out in this pass."""
        with self._lock:
            return not self._is_over and bool(self._done or self._spans)

    def advance(self, marks: Iterable[FileMark]) -> None:
        """Record that a batch with these records was handed out."""
        with self._lock:
            for mark in marks:
                if mark.path not in self._done:
                    self._take(mark)

    def end(self, files: Iterable[str]) -> None:
        """Mark the pass over these files as finished: the next one starts from the beginning."""
        with self._lock:
            self._done.update(files)
            self._spans.clear()
            self._totals.clear()
            self._is_over = True

    def remaining(self, files: list[str]) -> list[FileToRead]:
        """Return what is left to read of `files`, in their order."""
        with self._lock:
            return [
                FileToRead(path, self._spans.get(path, ()))
                for path in files
                if path not in self._done
            ]

    def state(self) -> dict[str, Any]:
        """Return the progress as lists, dicts, strings and numbers."""
        with self._lock:
            return {
                "version": _VERSION,
                "is_over": self._is_over,
                "done": sorted(self._done),
                "records": {
                    path: [list(span) for span in spans]
                    for path, spans in sorted(self._spans.items())
                },
            }

    @staticmethod
    def from_state(state: Mapping[str, Any], files: list[str] | None) -> Progress:
        """Return the progress saved in `state`; after a finished pass nothing counts as read.

        Raises ConfigError if the state names files that are not in `files`. Also reads version 1.
        """
        version = state.get("version") if isinstance(state, Mapping) else None
        if version not in (1, _VERSION):
            raise ConfigError(
                f"not a state of a Reader of version {_VERSION} or earlier: {state!r:.200}"
            )
        progress = Progress()
        try:
            progress._done = set(state["done"])
            if version == 1:  # lines from the beginning of each file
                spans = {path: [(0, lines)] for path, lines in state["lines"].items()}
            else:
                spans = state["records"]
            for path, pairs in spans.items():
                progress._spans[str(path)] = _checked_spans(pairs)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"not a state of a Reader: {state!r:.200}") from error
        known = set(files) if files is not None else None
        unknown = set() if known is None else (progress._done | progress._spans.keys()) - known
        if unknown:
            raise ConfigError(
                f"the state names {min(unknown)}, which is not one of this Reader's files"
            )
        return Progress() if state.get("is_over") else progress

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

    A reader of that list can load it whatever its `worker_num`, and reads the rest of its part.
    What a worker has read counts even if its pass was finished, unless all passes were.

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
    for state in given:
        one = Progress.from_state({**state, "is_over": False}, None)
        merged._done |= one._done
        for path, spans in one._spans.items():
            for span in spans:
                merged._spans[path] = add_span(merged._spans.get(path, ()), span)
    for path in merged._done & merged._spans.keys():
        del merged._spans[path]
    return merged.state()


def add_span(spans: Spans, new: tuple[int, int]) -> Spans:
    """Return `spans` with one more, merging those that touch.

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
            raise ValueError(f"[{begin}, {end}) is not a range of records")
        spans = add_span(spans, (int(begin), int(end)))
    return spans
