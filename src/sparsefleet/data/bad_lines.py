"""Malformed records of one pass: counted, put aside, and too many of them an error."""

from __future__ import annotations

import os
import threading
from typing import IO, NamedTuple

from sparsefleet.errors import BadLineError, InputFileError


class BadLine(NamedTuple):
    """Where a line, or another kind of record, is and what is wrong with it."""

    path: str
    line: int
    """From 1."""
    column: int | str
    """In bytes from 1; of files with columns, the name of one."""
    what: str
    text: bytes
    unit: str = "line"
    """What a record of the file is called."""


class BadLines:
    """Takes bad lines until there are more than the limit. Thread-safe.

    quarantine: a file that gets a line for each: path, line, column, what is wrong and the bad
        line itself, with tabs between. Written from its beginning in each pass, by the first.
    """

    def __init__(self, limit: int, quarantine: str | os.PathLike[str] | None) -> None:
        self._limit = limit
        self._quarantine = quarantine
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()
        self.count = 0

    def take(self, bad: BadLine) -> None:
        """Counts the line; raises BadLineError if it is one too many."""
        with self._lock:
            self.count += 1
            if self._quarantine is not None:
                self._write(self._quarantine, bad)
            if self.count <= self._limit:
                return
            allowed = (
                "ReaderConfig(max_bad_lines=..., quarantine=...), or set_max_bad_lines of a "
                f"Dataset, would skip such {bad.unit}s"
                if self._limit == 0
                else f"max_bad_lines allows {self._limit} of a pass"
            )
            raise BadLineError(
                f"{bad.path}, {bad.unit} {bad.line}, column {bad.column}: {bad.what}; {allowed}"
            )

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _write(self, path: str | os.PathLike[str], bad: BadLine) -> None:
        where = f"{bad.path}\t{bad.line}\t{bad.column}\t{bad.what}\t".encode("utf-8", "replace")
        try:
            if self._file is None:
                self._file = open(path, "wb" if self.count == 1 else "ab")  # noqa: SIM115
            self._file.write(where + bad.text + b"\n")
            self._file.flush()
        except OSError as error:
            raise InputFileError(
                f"{os.fspath(path)}: cannot write the bad lines there: {error}"
            ) from error
