"""The first moments of a child: it cannot outlive the launcher, then becomes its command.

Run by its path, isolated, so that nothing of the package (or torch) is imported on the way:
`python -I -S _child.py GO_FD LAUNCHER_PID COMMAND...`.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_CANNOT_RUN = 127  # as shells have it


def main(arguments: list[str]) -> int:
    """Returns only if the command is not to run, or cannot."""
    go, launcher, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    _ask_for_a_signal_when_the_launcher_ends()
    if os.getppid() != launcher:
        return 1
    # The launcher says go once the guard knows of this process; it says nothing if it is gone.
    if os.read(go, 1) != b"g":
        return 1
    os.close(go)
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and exec would hand that on
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return _CANNOT_RUN


def _ask_for_a_signal_when_the_launcher_ends() -> None:
    """Linux only, and a second line of defence: the guard does it everywhere."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
