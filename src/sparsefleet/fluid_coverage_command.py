"""`sparsefleet fluid-coverage`: which names of Fluid are here."""

from __future__ import annotations

import argparse
import dataclasses
import json

__all__ = ["FLUID_COVERAGE_DESCRIPTION", "add_fluid_coverage_flags", "run_fluid_coverage_command"]

FLUID_COVERAGE_DESCRIPTION = """\
Shows which of the names that public Fluid programs use are here, the most used first: how many
programs use each, and whether it is there.
"""


def add_fluid_coverage_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    parser.add_argument("--missing", action="store_true", help="only names that are not there")
    parser.add_argument(
        "--core",
        action="store_true",
        help="only names that programs of recommendation, matching and parameter servers use",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list, one object a name")


def run_fluid_coverage_command(options: argparse.Namespace) -> int:
    """Prints the names; always 0."""
    from sparsefleet.as_paddle.api_coverage import coverage

    names = [name for name in coverage() if name.core_programs or not options.core]
    shown = [name for name in names if not (options.missing and name.is_here)]
    if options.json:
        print(json.dumps([dataclasses.asdict(name) for name in shown], indent=2))
        return 0
    for name in shown:
        print(f"{name.programs:4d}  {'yes    ' if name.is_here else 'not yet'}  {name.name}")
    print(f"{sum(name.is_here for name in names)} of {len(names)} names are there.")
    return 0
