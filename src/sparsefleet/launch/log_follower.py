"""Handing on what another process writes to its log, line by line."""

from __future__ import annotations

from sparsefleet.launch.log_tail import clean_line

__all__ = ["LogFollower"]

_MOST_BYTES = 1 << 20


class LogFollower:
    """Gives every line of a log once, in order; from `place` bytes after its beginning."""

    def __init__(self, path: str, place: int = 0) -> None:
        self._path = path
        self._place = place
        self._begun = b""

    def new_lines(self) -> list[str]:
        """The lines that were completed since the last call."""
        *lines, self._begun = (self._begun + self._read()).split(b"\n")
        return [clean_line(line) for line in lines]

    def last_lines(self) -> list[str]:
        """All that is left, when nobody writes any more."""
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
