"""`sparsefleet fluid-coverage`: list the supported Fluid names."""

from __future__ import annotations

import argparse
import dataclasses
import json

__all__ = ["FLUID_COVERAGE_DESCRIPTION", "add_fluid_coverage_flags", "run_fluid_coverage_command"]

FLUID_COVERAGE_DESCRIPTION = """\
Lists the names that public Fluid programs use, most used first, with the number of programs that
use each name and whether it is supported. With --public, lists all public names of Fluid 1.8.5,
with whether each is supported and how many of the test cases in Paddle's own test suite that use it
pass here. Public names are those that a module of 1.8.5 declares in __all__, under the path of each
such module; in a module without __all__, the classes and functions that it defines; and the names
in the native module, as fluid.core. Imperative mode (dygraph, hapi), slim and generated files are
left out.
"""


def add_fluid_coverage_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument(
        "--public",
        action="store_true",
        help="all public names of Fluid 1.8.5, not only those in use",
    )
    parser.add_argument("--missing", action="store_true", help="only unsupported names")
    parser.add_argument(
        "--core",
        action="store_true",
        help="only names used by recommendation, matching and parameter-server programs",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON list with one object per name"
    )


def run_fluid_coverage_command(options: argparse.Namespace) -> int:
    """Print the names; the exit code is always 0."""
    from sparsefleet.fluid.paddle.api_coverage import coverage

    if options.public:
        return _show_public(options)
    names = [name for name in coverage() if name.core_programs or not options.core]
    shown = [name for name in names if not (options.missing and name.is_here)]
    if options.json:
        print(json.dumps([dataclasses.asdict(name) for name in shown], indent=2))
        return 0
    for name in shown:
        print(f"{name.programs:4d}  {'yes    ' if name.is_here else 'not yet'}  {name.name}")
    print(f"{sum(name.is_here for name in names)} of {len(names)} names are supported.")
    return 0


def _show_public(options: argparse.Namespace) -> int:
    from sparsefleet.fluid.paddle.api_coverage import public_names

    names = public_names()
    shown = [name for name in names if not (options.missing and name.is_here)]
    if options.json:
        print(json.dumps([dataclasses.asdict(name) for name in shown], indent=2))
        return 0
    for name in shown:
        state = "yes    " if name.is_here else "not yet"
        print(f"{name.passing:4d} of {name.cases:4d}  {state}  {name.name}")
    here = sum(name.is_here for name in names)
    tested = sum(name.passing > 0 for name in names)
    print(
        f"{here} of {len(names)} public names are supported; {tested} of them are covered by "
        "cases from Paddle's own tests that pass here. Public names are those in the __all__ of a "
        "module, or defined by a module without __all__; dygraph, hapi and slim are left out."
    )
    return 0
