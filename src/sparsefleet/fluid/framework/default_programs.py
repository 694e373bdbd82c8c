"""The programs that layers add to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sparsefleet.fluid.framework.program import Program

__all__ = [
    "default_main_program",
    "default_startup_program",
    "name_scope",
    "program_guard",
    "switch_main_program",
    "switch_startup_program",
]


class _Current:
    def __init__(self) -> None:
        self.main = Program()
        self.startup = Program()


_current = _Current()


def default_main_program() -> Program:
    """The program that layers add to."""
    return _current.main


def default_startup_program() -> Program:
    """The program that gives parameters their first values; to be run once."""
    return _current.startup


def switch_main_program(program: Program) -> Program:
    """Layers add to this program from now on; gives the one before."""
    old, _current.main = _current.main, program
    return old


def switch_startup_program(program: Program) -> Program:
    """First values go to this program from now on; gives the one before."""
    old, _current.startup = _current.startup, program
    return old


@contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Layers within add to these programs; without a start-up program, to the one there is.

    >>> main = Program()
    >>> with program_guard(main):
    ...     default_main_program() is main
    True
    """
    for given in (main_program, startup_program):
        if given is not None and not isinstance(given, Program):
            raise TypeError(f"program_guard takes fluid.Program objects, got {given!r}")
    old = (_current.main, _current.startup)
    _current.main = main_program
    _current.startup = startup_program or _current.startup
    try:
        yield
    finally:
        _current.main, _current.startup = old


@contextmanager
def name_scope(prefix: str | None = None) -> Iterator[None]:
    """Groups layers for pictures of the network; names of variables stay as they are."""
    del prefix
    yield
