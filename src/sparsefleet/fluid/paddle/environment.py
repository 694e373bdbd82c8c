"""The environment in which Python finds this `paddle`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["PROVIDED_PATH", "environment_with_paddle"]

PROVIDED_PATH = str(Path(__file__).parent / "provided")
"""The folder that provides `paddle`. It is only reachable through PYTHONPATH."""


def environment_with_paddle(variables: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` changed so that child processes find this `paddle` first.

    `python` is then this interpreter: pipe commands call it by that name, and another one may not
    have sparsefleet.

    >>> found = environment_with_paddle({"PYTHONPATH": "/mine"})["PYTHONPATH"]
    >>> found == f"{PROVIDED_PATH}{os.pathsep}/mine"
    True
    >>> environment_with_paddle({"PYTHONPATH": found})["PYTHONPATH"] == found
    True
    """
    others = [
        folder
        for folder in variables.get("PYTHONPATH", "").split(os.pathsep)
        if folder and folder != PROVIDED_PATH
    ]
    programs = [os.path.dirname(sys.executable)]
    programs += [one for one in variables.get("PATH", "").split(os.pathsep) if one != programs[0]]
    return {
        **variables,
        "PATH": os.pathsep.join(programs),
        "PYTHONPATH": os.pathsep.join([PROVIDED_PATH, *others]),
    }
