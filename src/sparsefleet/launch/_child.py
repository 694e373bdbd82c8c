"""Start a child process: tie its lifetime to the launcher's, then execute its command.

The launcher runs this file by its path, isolated, so that neither the package nor torch is
imported: `python -I -S _child.py GO_FD LAUNCHER_PID COMMAND...`.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_CANNOT_RUN = 127  # the exit code that shells use


def main(arguments: list[str]) -> int:
    """Execute the command. Returns only if the command must not or cannot run."""
    go, launcher, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    _ask_for_a_signal_when_the_launcher_ends()
    if os.getppid() != launcher:
        return 1
    # The launcher sends "g" once the guard tracks this process; a dead launcher sends nothing.
    if os.read(go, 1) != b"g":
        return 1
    os.close(go)
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores these, and the command would inherit that
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return _CANNOT_RUN


def _ask_for_a_signal_when_the_launcher_ends() -> None:
    """Request a signal when the launcher dies. Linux only; elsewhere the guard kills the
    process."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
