"""Run a job's script inside an actor, as `python script.py` would."""

from __future__ import annotations

import os
import runpy
import sys

from sparsefleet.errors import SparseFleetError
from sparsefleet.launch.ray.servers import ScriptPlan

__all__ = ["ScriptFailedError", "run_script"]


class ScriptFailedError(SparseFleetError):
    """Raised if a job's script exits with a code other than 0."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[ScriptFailedError], tuple[str, int]]:
        return type(self), (str(self), self.code)


def run_script(plan: ScriptPlan) -> None:
    """Run the script in this thread until it finishes.

    Raises ScriptFailedError if it exits with a code other than 0, and passes on the script's own
    exceptions.
    """
    if os.path.isdir(plan.directory):
        os.chdir(plan.directory)
    sys.argv = [plan.script, *plan.arguments]
    try:
        if plan.is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(plan.script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(plan.script)))
            runpy.run_path(plan.script, run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            code = error.code if isinstance(error.code, int) else 1
            raise ScriptFailedError(f"{plan.script} exited with {error.code}", code) from error
