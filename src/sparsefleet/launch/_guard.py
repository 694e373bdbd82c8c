"""Clean up after a launcher that was killed.

The launcher runs this file by its path: `python -I -S _guard.py GRACE_SECONDS`. Standard input is a
pipe from the launcher with one message per line: `+PID` and `-PID` when a process group starts and
ends, `file PATH` for a file to remove at once, and `directory PATH` for one to remove after all
groups have exited. The pipe closes when the launcher exits, for whatever reason.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable

_LOOK_S = 0.05
_KILLED_S = 10.0  # a process that survives SIGKILL this long is blocked on a device


def main(arguments: list[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups, files, directories = _listen(sys.stdin.buffer)
    for path in files:
        with contextlib.suppress(OSError):
            os.unlink(path)
    _end(groups, float(arguments[0]))
    for path in directories:
        shutil.rmtree(path, ignore_errors=True)
    return 0


def _listen(lines: Iterable[bytes]) -> tuple[set[int], list[bytes], list[bytes]]:
    """Read the launcher's messages until it exits; return remaining groups and paths to remove."""
    groups: set[int] = set()
    files: list[bytes] = []
    directories: list[bytes] = []
    for line in lines:
        message = line.rstrip(b"\n")
        if message.startswith(b"+"):
            groups.add(int(message[1:]))
        elif message.startswith(b"-"):
            groups.discard(int(message[1:]))
        elif message.startswith(b"file "):
            files.append(message.removeprefix(b"file "))
        elif message.startswith(b"directory "):
            directories.append(message.removeprefix(b"directory "))
    return groups, files, directories


def _end(groups: set[int], grace_s: float) -> None:
    for group in groups:
        with contextlib.suppress(OSError):
            os.kill(group, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while (groups := {group for group in groups if group_exists(group)}) and (
        time.monotonic() < deadline
    ):
        for group in groups:
            if not _leader_lives(group):
                _kill(group)
        time.sleep(_LOOK_S)
    for group in groups:
        _kill(group)
    deadline = time.monotonic() + _KILLED_S
    while any(group_exists(group) for group in groups) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def _kill(group: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)


def group_exists(group: int) -> bool:
    """Return whether the process group has a process."""
    try:
        os.killpg(group, 0)
    except OSError:  # none left, or (macOS) only zombies
        return False
    return True


def _leader_lives(group: int) -> bool:
    try:
        os.kill(group, 0)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
