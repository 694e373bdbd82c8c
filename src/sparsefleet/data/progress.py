"""How far a pass has come, file by file, so that another can go on from there."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sparsefleet.errors import ConfigError

_VERSION = 1


class FileMark(NamedTuple):
    """The records of a file up to and with this line are in a batch, or were skipped as bad."""

    path: str
    lines: int
    is_end: bool


class FileToRead(NamedTuple):
    """A file and how many of its lines were read in an earlier pass."""

    path: str
    skip_lines: int


class Progress:
    """What of the files was handed out. Thread-safe.

    >>> progress = Progress()
    >>> progress.advance([FileMark("a", 10, True), FileMark("b", 3, False)])
    >>> progress.remaining(["a", "b", "c"])
    [FileToRead(path='b', skip_lines=3), FileToRead(path='c', skip_lines=0)]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: set[str] = set()
        self._lines: dict[str, int] = {}

    def advance(self, marks: Iterable[FileMark]) -> None:
        """A batch with these records was handed out."""
        with self._lock:
            for mark in marks:
                if mark.is_end:
                    self._done.add(mark.path)
                    self._lines.pop(mark.path, None)
                elif mark.path not in self._done:  # batches may be reported in another order
                    self._lines[mark.path] = max(mark.lines, self._lines.get(mark.path, 0))

    def restart(self) -> None:
        """The pass is over: the next one begins with nothing read."""
        with self._lock:
            self._done.clear()
            self._lines.clear()

    def remaining(self, files: list[str]) -> list[FileToRead]:
        """What is left to read of `files`, in their order."""
        with self._lock:
            return [
                FileToRead(path, self._lines.get(path, 0))
                for path in files
                if path not in self._done
            ]

    def state(self) -> dict[str, Any]:
        """As plain lists, dicts, texts and numbers."""
        with self._lock:
            return {
                "version": _VERSION,
                "done": sorted(self._done),
                "lines": dict(sorted(self._lines.items())),
            }

    @staticmethod
    def from_state(state: Mapping[str, Any], files: list[str]) -> Progress:
        """The inverse of `state`; refuses one of other files."""
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise ConfigError(f"this is no state of a reader of version {_VERSION}: {state!r:.200}")
        progress = Progress()
        try:
            progress._done = set(state["done"])
            progress._lines = {str(path): int(lines) for path, lines in state["lines"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"this is no state of a reader: {state!r:.200}") from error
        unknown = (progress._done | progress._lines.keys()) - set(files)
        if unknown:
            raise ConfigError(
                f"the state speaks of {min(unknown)}, which is not one of this reader's files"
            )
        return progress
