"""Who reads what: files, and parts of them, each handed out once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from sparsefleet.data.progress import FileToRead
from sparsefleet.data.record_source import FilePart

_POLL_S = 0.2  # how long the end of a pass may go unnoticed


class Cursor(Protocol):
    """Hands out files; any number of threads may ask."""

    def take(self) -> FileToRead | None:
        """The next file; None if there are no more, and then for good."""


class FileCursor:
    """Hands out each file once, first come, first served. Thread-safe."""

    def __init__(self, files: list[FileToRead]) -> None:
        self._files = iter(files)
        self._lock = threading.Lock()

    def take(self) -> FileToRead | None:
        with self._lock:
            return next(self._files, None)


class PartCursor:
    """Hands out the parts of the files of a cursor, those of one file before the next. Thread-safe.

    split: the parts of a file, in order; may read the file.
    """

    def __init__(
        self,
        files: Cursor,
        split: Callable[[FileToRead], list[FilePart]],
        stopped: Callable[[], bool],
    ) -> None:
        self._files = files
        self._split = split
        self._stopped = stopped
        self._parts: deque[FilePart] = deque()
        self._splitting = 0
        self._has_files = True
        self._changed = threading.Condition()

    def take(self) -> FilePart | None:
        """The next part; None at the end. Waits while another thread splits the last file."""
        while not self._stopped():
            with self._changed:
                if self._parts:
                    return self._parts.popleft()
                if not self._has_files and self._splitting == 0:
                    return None
                if not self._has_files:
                    self._changed.wait(_POLL_S)
                    continue
                self._splitting += 1
            self._split_next()
        return None

    def _split_next(self) -> None:
        """Takes and splits a file without the lock: either may wait for a disk or a network."""
        file: FileToRead | None = None
        parts: list[FilePart] = []
        try:
            file = self._files.take()
            if file is not None:
                parts = self._split(file)
        finally:
            with self._changed:
                self._splitting -= 1
                self._has_files = self._has_files and file is not None
                self._parts.extend(parts)
                self._changed.notify_all()
