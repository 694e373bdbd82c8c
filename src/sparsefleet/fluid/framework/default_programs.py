"""The default programs, which layers add operators to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sparsefleet.fluid.framework.call_site import ProgramError, call_site
from sparsefleet.fluid.framework.places import CPUPlace, Place
from sparsefleet.fluid.framework.program import Program
from sparsefleet.fluid.framework.variable import Variable

__all__ = [
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "in_dygraph_mode",
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
    """Return the program that layers add operators to."""
    return _current.main


def default_startup_program() -> Program:
    """Return the program that initializes parameters, to be run once."""
    return _current.startup


def switch_main_program(program: Program) -> Program:
    """Make layers add to this program; return the previous program."""
    old, _current.main = _current.main, program
    return old


def switch_startup_program(program: Program) -> Program:
    """Make layers add initializers to this program; return the previous program."""
    old, _current.startup = _current.startup, program
    return old


@contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Make layers in the `with` block add to these programs.

    None keeps the current startup program.

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
    """Group layers when the network is drawn; does not change variable names."""
    del prefix
    yield


@contextmanager
def device_guard(device: str | None = None) -> Iterator[None]:
    """Mark the operators in the `with` block for "cpu" or "gpu".

    They still run on the Executor's place.

    >>> with device_guard("cpu"):
    ...     pass
    """
    kind = (device or "").partition(":")[0]
    if kind not in ("", "cpu", "gpu"):
        raise ProgramError.at(
            call_site(), "device_guard", f"device must be 'cpu', 'gpu' or None, got {device!r}"
        )
    yield


def in_dygraph_mode() -> bool:
    """Return whether layers compute immediately; see `fluid.dygraph`."""
    return _current.main.is_eager


def _current_expected_place() -> Place:
    """Return the place where imperative layers compute."""
    return CPUPlace()


def _get_var(name: str, program: Program | None = None) -> Variable:
    """Return a variable in a program, by default in the default main program."""
    return (program or default_main_program()).global_block().var(name)


@contextmanager
def _dygraph_place_guard(place: object) -> Iterator[None]:
    """Run imperative layers in the `with` block on a place. All places refer to the CPU here."""
    del place
    yield
