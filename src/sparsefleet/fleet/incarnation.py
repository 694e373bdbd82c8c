"""Counts the earlier processes of this rank, and keeps a record for the next process."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparsefleet.errors import ConfigError, NotFoundError
from sparsefleet.fleet.board import Board
from sparsefleet.job_id import counts_restarts, job_id

__all__ = ["Incarnation", "WorkerRecord", "are_ranks_replaced"]

_CHUNK_BYTES = 60_000  # a note holds 64 KiB


@dataclass(frozen=True, kw_only=True, slots=True)
class Incarnation:
    """Identifies a process of a job that may be restarted on its own; see docs/fault_tolerance.md.

    >>> Incarnation(job="3f", number=1).session(0, "model")
    '3f/worker-0/model'
    """

    job: str = ""
    """A random ID of the job, different for each full start; empty if this process is never
    restarted alone.
    """

    number: int = 0
    """Number of earlier processes with this rank."""

    is_counted: bool = True
    """Whether earlier processes were counted. If False, `number` is 1 even if there were none."""

    @staticmethod
    def from_environment() -> Incarnation:
        """Return the incarnation set by the launcher or the scheduler; see docs/env.md."""
        text = os.environ.get("SPARSEFLEET_INCARNATION", "")
        if text and not text.isdecimal():
            raise ConfigError(f"SPARSEFLEET_INCARNATION must be an integer >= 0, got {text!r}")
        job = job_id()
        if counts_restarts() or not job:
            return Incarnation(job=job, number=int(text or 0))
        # A process is the first if the servers do not know an earlier one.
        return Incarnation(job=job, number=1, is_counted=False)

    @property
    def is_replaceable(self) -> bool:
        """Return whether another process may replace this one."""
        return bool(self.job)

    @property
    def is_successor(self) -> bool:
        """Return whether this process replaces an earlier one."""
        return self.is_replaceable and self.number > 0

    def session(self, rank: int, name: str) -> str:
        """Return the session of worker `rank` on the servers for the run `name`."""
        return f"{self.job}/worker-{rank}/{name}" if self.job else ""


def are_ranks_replaced() -> bool:
    """Return whether the launcher starts a new process for a killed rank; see docs/env.md.

    The launcher does so only for ranks that have declared that the other ranks can wait for a
    replacement.
    """
    return os.environ.get("SPARSEFLEET_REPLACE_RANKS") == "1"


class WorkerRecord:
    """A worker's record on the board for the process that replaces it. Not thread-safe.

    The record is written atomically, so a process that dies while writing leaves the previous
    record.

    >>> from sparsefleet.store import LocalStore
    >>> board = LocalStore()
    >>> WorkerRecord(board, "worker-0").write({"epoch": 3})
    >>> WorkerRecord(board, "worker-0").read()
    {'epoch': 3}
    """

    def __init__(self, board: Board, name: str) -> None:
        self._board = board
        self._name = f"record/{name}"
        self._number, self._parts = self._head()

    def read(self) -> dict[str, Any] | None:
        """Return the last record that was written, or None if there is no record."""
        if not self._parts:
            return None
        parts = [self._board.get_note(self._part(i)) for i in range(self._parts)]
        found: dict[str, Any] = json.loads(b"".join(parts))
        return found

    def write(self, record: Mapping[str, Any]) -> None:
        """Replace the record."""
        before = [self._part(index) for index in range(self._parts)]
        data = json.dumps(record).encode()
        chunks = [data[i : i + _CHUNK_BYTES] for i in range(0, len(data), _CHUNK_BYTES)]
        self._number, self._parts = self._number + 1, len(chunks)
        for index, chunk in enumerate(chunks):
            self._board.put_note(self._part(index), chunk)
        self._board.put_note(self._name, f"{self._number} {self._parts}".encode())
        for name in before:
            self._board.delete_note(name)

    def _head(self) -> tuple[int, int]:
        try:
            number, parts = map(int, self._board.get_note(self._name).split())
        except NotFoundError:
            return 0, 0
        return number, parts

    def _part(self, index: int) -> str:
        return f"{self._name}/{self._number}/{index}"
