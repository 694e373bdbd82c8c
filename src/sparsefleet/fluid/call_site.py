"""Where in the user's program a layer was called."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from sparsefleet.errors import SparseFleetError

__all__ = ["CallSite", "ProgramError", "call_site"]

_PACKAGE = str(Path(__file__).parents[1])
# A block is closed through it, by a line of the user's.
_SKIPPED = (_PACKAGE, contextlib.__file__, "<frozen")


class CallSite(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class ProgramError(SparseFleetError, ValueError):
    """A program that cannot be built or run; the message begins with the user's line.

    >>> ProgramError.at(CallSite("train.py", 12), "fc", "size is 0")
    ProgramError('train.py:12: fc: size is 0')
    """

    @classmethod
    def at(cls, site: CallSite | None, what: str, message: str) -> ProgramError:
        """The error for operator or layer `what`, called at `site`."""
        return cls(f"{site}: {what}: {message}" if site else f"{what}: {message}")

    @classmethod
    def no_value(cls, name: str) -> ProgramError:
        """The error for a kept variable that a run needs and that the scope does not have."""
        return cls(
            f"variable '{name}' has no value in the scope: run the start-up program "
            "(exe.run(fluid.default_startup_program())) or load it first"
        )


def call_site() -> CallSite | None:
    """The innermost line outside of this package; None if all are inside."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_SKIPPED):
            return CallSite(file, frame.f_lineno)
        frame = frame.f_back
    return None
