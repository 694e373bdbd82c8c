"""Determine which process caused a job to fail, and which ones only failed as a result."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence

from sparsefleet.launch.child_process import ChildProcess, describe_exit

__all__ = ["describe_failure", "error_of", "find_cause", "is_consequence"]

# A process that fails reports its error within its last lines. An error further back may have been
# handled, so it is reported only as a hint.
_NEAR_LINES, _FAR_LINES, _LOG_BYTES = 200, 20_000, 1 << 20
_MAX_ERROR = 300
_ERROR = re.compile(
    r"(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|ExceptionGroup|Interrupt|Exit))(?::\s.*)?"
)
_TRACEBACK = "Traceback (most recent call last):"
# Torch prefixes each line of a traceback with the rank, and Python indents exception groups.
_MARGIN = re.compile(r"^(?:\[rank\d+\]:\s?)?(?:  [|+] )?")
_CONSEQUENCES = frozenset(
    {
        "BrokenPipeError",
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "DeadlineError",
        "DistBackendError",
        "DistNetworkError",
        "PeerLostError",
        "RpcError",
        "ServerRestartedError",
        "ShuttingDownError",
    }
)
"""Exceptions that a process raises because another process is gone or does not respond."""


def error_of(child: ChildProcess) -> str:
    """Return the last exception at the end of a process's log, or "" if there is none. The result
    is the line with the exception's name; notes may follow it in the log.
    """
    return _last_error(child, _NEAR_LINES)[0]


def _last_error(child: ChildProcess, count: int) -> tuple[str, int]:
    """Return the last exception in the last `count` lines, or "", and how many lines follow it."""
    lines = [_MARGIN.sub("", line) for line in child.log.last_lines(count, _LOG_BYTES)]
    for at in reversed(range(len(lines))):
        if _ERROR.fullmatch(lines[at]):
            return _shortened(lines[at]), len(lines) - at - 1
        if lines[at].endswith(_TRACEBACK):  # the exception does not have one of the usual names
            ends = (i for i in range(at + 1, len(lines)) if lines[i] and lines[i][0] != " ")
            end = next(ends, None)
            return ("", 0) if end is None else (_shortened(lines[end]), len(lines) - end - 1)
    return "", 0


def _shortened(line: str) -> str:
    return line if len(line) <= _MAX_ERROR else f"{line[:_MAX_ERROR]}..."


def is_consequence(child: ChildProcess) -> bool:
    """Return whether a process failed because another was lost, judging by its exception."""
    found = _ERROR.fullmatch(error_of(child))
    return (child.exit_code or 0) > 0 and found is not None and found[1] in _CONSEQUENCES


def is_stopped(child: ChildProcess) -> bool:
    """Return whether a process is suspended, for example by SIGSTOP; always False outside Linux."""
    if sys.platform != "linux" or not child.is_running:
        return False
    try:
        with open(f"/proc/{child.pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] == b"T"
    except OSError:
        return False


def find_cause(
    failures: Sequence[ChildProcess], others: Sequence[ChildProcess]
) -> ChildProcess | None:
    """Return the process that explains the failures, which are in the order they were noticed.

    Killed processes come first, since no other process could have made them fail, then those with
    their own error, then any of `others` that are suspended. Returns None if every failure is a
    consequence of something unknown.
    """
    for child in failures:
        if child.exit_code is not None and child.exit_code < 0:
            return child
    for child in failures:
        if not is_consequence(child):
            return child
    return next((child for child in others if is_stopped(child)), None)


def describe_failure(cause: ChildProcess, failures: Sequence[ChildProcess]) -> list[str]:
    """Return what failed, why and when, then the processes that failed as a result."""
    when = time.strftime("%H:%M:%S", time.localtime(cause.ended_at or time.time()))
    who = f"{cause.name} (pid {cause.pid})"
    if cause.exit_code is None:
        lines = [
            f"{who} was found suspended (SIGSTOP) at {when} while other processes waited for it"
        ]
    else:
        lines = [f"{who} {describe_exit(cause.exit_code)} at {when}{_why(cause)}"]
    for child in failures:
        if child is not cause:
            lines.append(f"  then {child.name} {describe_exit(child.exit_code or 0)}{_why(child)}")
    return lines


def _why(child: ChildProcess) -> str:
    error = error_of(child)
    if error:
        return f": {error}"
    last = child.log.last_line() if (child.exit_code or 0) > 0 else ""
    if not last:
        return ""
    earlier, lines = _last_error(child, _FAR_LINES)
    more = f"; last error, {lines} lines earlier: {earlier}" if earlier else ""
    return f"; its log ends with {_shortened(last)!r}{more}"
