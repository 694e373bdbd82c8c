"""The environment in which Python finds a `paddle`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["PROVIDED_PATH", "environment_with_paddle"]

PROVIDED_PATH = str(Path(__file__).parent / "provided")
"""The folder that provides `paddle`. Nothing but PYTHONPATH leads there."""


def environment_with_paddle(variables: Mapping[str, str]) -> dict[str, str]:
    """`variables`, such that this process's children find `paddle` before any installed one.

    `python` is this Python there: pipe commands call it by that name, and in another one there
    need be no sparsefleet.

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
