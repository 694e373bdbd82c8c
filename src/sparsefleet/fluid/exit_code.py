"""Make the exit code report failures of work that runs at process exit.

When an `atexit` function fails, Python prints the error and exits with 0, so a launcher would see
success even though gradients never arrived.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["counted_at_exit"]

_failed: list[str] = []


@contextmanager
def counted_at_exit(what: str) -> Iterator[None]:
    """In an exit handler, print any error from the `with` block and make the process exit with
    code 1.
    """
    try:
        yield
    except Exception:
        _failed.append(what)
        with suppress(OSError):  # the error cannot be reported, for example to a log on a full disk
            traceback.print_exc()


def _end() -> None:
    if not _failed:
        return
    with suppress(OSError):
        print(f"{', '.join(_failed)} failed at exit; ending with code 1", file=sys.stderr)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(1)  # nothing else can set the exit code at this point


# Functions run in reverse order, so this one runs after all that are registered once training has
# begun.
atexit.register(_end)
