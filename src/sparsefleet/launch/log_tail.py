"""Read a log that another process writes."""

from __future__ import annotations

import os
import re

__all__ = ["LogFollower", "LogTail", "clean_line"]

_CHUNK_BYTES = 64 << 10
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def clean_line(raw: bytes) -> str:
    """Return a line as a terminal would finally show it, after any overwriting and without colors.

    >>> clean_line(b"50%\\r\\x1b[32m100%\\x1b[0m")
    '100%'
    """
    text = _ESCAPES.sub("", raw.decode("utf-8", "replace")).rstrip()
    last = text.rsplit("\r", 1)[-1].expandtabs(4)
    return "".join(letter for letter in last if letter.isprintable())


class LogTail:
    """The end of a growing log file. is_continued: ignore the existing contents of the file."""

    def __init__(self, path: str, *, is_continued: bool = False) -> None:
        self._path = path
        self._begin = _size(path) if is_continued else 0
        self._seen = self._begin
        self._last = ""

    def last_line(self) -> str:
        """Return the last non-empty line, complete or not. Reads only new data."""
        size = _size(self._path)
        if size != self._seen:
            lines = self._lines_before(size)
            self._last = next((line for line in reversed(lines) if line), self._last)
            self._seen = size
        return self._last

    def last_lines(self, count: int, most_bytes: int = _CHUNK_BYTES) -> list[str]:
        """Return up to `count` lines from the last `most_bytes` bytes, newest last."""
        return self._lines_before(_size(self._path), most_bytes)[-count:]

    def _lines_before(self, end: int, most_bytes: int = _CHUNK_BYTES) -> list[str]:
        start = max(self._begin, end - most_bytes)
        try:
            with open(self._path, "rb") as file:
                file.seek(start)
                raw = file.read(most_bytes)
        except OSError:
            return []
        lines = raw.rstrip().split(b"\n")
        if start > self._begin and len(lines) > 1:
            del lines[0]  # it started before the chunk
        return [clean_line(line) for line in lines] if raw.strip() else []


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


_MOST_BYTES = 1 << 20


class LogFollower:
    """Returns every line of a log once, in order, starting `place` bytes into the file."""

    def __init__(self, path: str, place: int = 0) -> None:
        self._path = path
        self._place = place
        self._begun = b""

    def new_lines(self) -> list[str]:
        """Return the lines completed since the last call."""
        *lines, self._begun = (self._begun + self._read()).split(b"\n")
        return [clean_line(line) for line in lines]

    def last_lines(self) -> list[str]:
        """Return everything left, once the log is complete."""
        lines = []
        while raw := self._read():
            self._begun += raw
        if self._begun:
            lines = [clean_line(line) for line in self._begun.removesuffix(b"\n").split(b"\n")]
        self._begun = b""
        return lines

    def _read(self) -> bytes:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._place)
                raw = file.read(_MOST_BYTES)
        except OSError:
            return b""
        self._place += len(raw)
        return raw
