"""Reading a log that another process writes."""

from __future__ import annotations

import os
import re

__all__ = ["LogTail", "clean_line"]

_CHUNK_BYTES = 64 << 10
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def clean_line(raw: bytes) -> str:
    """What a terminal would show in the end: the last of several overwritten lines, no colours.

    >>> clean_line(b"50%\\r\\x1b[32m100%\\x1b[0m")
    '100%'
    """
    text = _ESCAPES.sub("", raw.decode("utf-8", "replace")).rstrip()
    last = text.rsplit("\r", 1)[-1].expandtabs(4)
    return "".join(letter for letter in last if letter.isprintable())


class LogTail:
    """The end of a log file, as it grows. is_continued: what is there already is not part of it."""

    def __init__(self, path: str, *, is_continued: bool = False) -> None:
        self._path = path
        self._begin = _size(path) if is_continued else 0
        self._seen = self._begin
        self._last = ""

    def last_line(self) -> str:
        """The last line that is not empty, complete or not. Reads only what is new."""
        size = _size(self._path)
        if size != self._seen:
            lines = self._lines_before(size)
            self._last = next((line for line in reversed(lines) if line), self._last)
            self._seen = size
        return self._last

    def last_lines(self, count: int) -> list[str]:
        """Up to `count` lines, the newest last."""
        return self._lines_before(_size(self._path))[-count:]

    def _lines_before(self, end: int) -> list[str]:
        start = max(self._begin, end - _CHUNK_BYTES)
        try:
            with open(self._path, "rb") as file:
                file.seek(start)
                raw = file.read(_CHUNK_BYTES)
        except OSError:
            return []
        lines = raw.rstrip().split(b"\n")
        if start > self._begin and len(lines) > 1:
            del lines[0]  # it began before the chunk
        return [clean_line(line) for line in lines] if raw.strip() else []


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
