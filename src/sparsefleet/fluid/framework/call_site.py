"""Find the line of the user's program that called a layer."""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from sparsefleet.errors import SparseFleetError

__all__ = ["CallSite", "EnforceNotMet", "ProgramError", "call_site", "raised_inside", "site_prefix"]

_PACKAGE = str(Path(__file__).parents[2])
# contextlib exits `with` blocks for the user's line; threads start in the other modules.
_SKIPPED = (
    _PACKAGE,
    contextlib.__file__,
    threading.__file__,
    str(Path(concurrent.futures.__file__).parent),
    "<frozen",
)


class CallSite(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class EnforceNotMet(SparseFleetError):  # noqa: N818  Fluid's name
    """Raised when a check fails, in place of the error from Fluid's native code."""


class ProgramError(EnforceNotMet, ValueError):
    """Raised if a program cannot be built or run; the message starts with the user's line.

    >>> ProgramError.at(CallSite("train.py", 12), "fc", "size is 0")
    ProgramError('train.py:12: fc: size is 0')
    """

    @classmethod
    def at(cls, site: CallSite | None, what: str, message: str) -> ProgramError:
        """Return the error for operator or layer `what`, called at `site`."""
        return cls(f"{site}: {what}: {message}" if site else f"{what}: {message}")

    @classmethod
    def no_value(cls, name: str, site: CallSite | None) -> ProgramError:
        """Return the error for a persistent variable that the operator at `site` needs but the
        scope lacks.
        """
        return cls(
            f"{site_prefix(site)}variable '{name}' has no value in the scope; run the startup "
            "program (exe.run(fluid.default_startup_program())) or load it first"
        )


def site_prefix(site: CallSite | None = None) -> str:
    """Return a message prefix that names the given line or, by default, the innermost call outside
    this package.
    """
    found = site or call_site()
    return f"{found}: " if found else ""


def call_site() -> CallSite | None:
    """Return the line of the innermost call outside this package, or None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_SKIPPED):
            return CallSite(file, frame.f_lineno)
        frame = frame.f_back
    return None


def raised_inside(error: BaseException) -> bool:
    """Return whether an error comes from this package rather than from a user's function."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)
