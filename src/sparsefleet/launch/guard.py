"""The launcher's side of the guard, a process that stops the job if the launcher is killed."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from sparsefleet.launch import _guard

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Guard"]

_log = logging.getLogger("sparsefleet.launch")
_END_S = 30.0


class Guard:
    """Tracks every process group of the job and kills the groups when the launcher has exited.

    The guard reads from a pipe whose only writer is the launcher; the system closes the pipe even
    if the launcher is killed by SIGKILL.
    """

    def __init__(self, grace_s: float) -> None:
        path = str(Path(_guard.__file__).resolve())
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", path, str(grace_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def add(self, group: int) -> None:
        self._report(f"+{group}")

    def remove(self, group: int) -> None:
        """Stop tracking a group. Must be called before the system can reuse the process id."""
        self._report(f"-{group}")

    def remove_file(self, path: str) -> None:
        """Have the guard remove the file when the launcher has exited."""
        self._report(f"file {path}")

    def remove_directory(self, path: str) -> None:
        """Have the guard remove the directory when the launcher and all groups have exited."""
        self._report(f"directory {path}")

    def _report(self, message: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{message}\n".encode("utf-8", "surrogateescape"))
            self._process.stdin.flush()
        except BrokenPipeError:
            _log.warning(
                "the guard process %d has died; processes may remain if this launcher is killed",
                self._process.pid,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
