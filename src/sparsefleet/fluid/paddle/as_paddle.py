"""`python -m sparsefleet.as_paddle train.py args...`: run a script that imports `paddle`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["PROVIDED_PATH", "environment_with_paddle"]

PROVIDED_PATH = str(Path(__file__).parent / "provided")
"""The folder that provides `paddle`. It can only be found through PYTHONPATH."""


def environment_with_paddle(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of `variables`, changed so that child processes import this `paddle` first.

    In child processes, `python` is this interpreter, because pipe commands call `python`, and a
    different interpreter may not have sparsefleet.

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


_USAGE = """\
usage: python -m sparsefleet.as_paddle SCRIPT [ARGUMENT ...]
       python -m sparsefleet.as_paddle -m MODULE [ARGUMENT ...]
       python -m sparsefleet.as_paddle --path

Runs a script, or a module such as paddle.distributed.launch_ps, for which `import paddle`
means sparsefleet; so it does for the processes that it starts. --path prints the folder that
provides `paddle`, for PYTHONPATH. docs/coming_from_fluid.md says what differs.
"""


def main(arguments: Sequence[str]) -> int:
    """Replace this process with the script; return the exit code if there is nothing to run."""
    if list(arguments) == ["--path"]:
        print(PROVIDED_PATH)
        return 0
    if list(arguments) in (["-h"], ["--help"]):
        print(_USAGE, end="")
        return 0
    wrong = _mistake(arguments)
    if wrong:
        print(f"{_USAGE}python -m sparsefleet.as_paddle: error: {wrong}", file=sys.stderr)
        return 2
    # Uses a new interpreter, not runpy, so that the script is __main__ as usual, including for
    # multiprocessing, and no part of sparsefleet is loaded before the script imports it.
    command = [sys.executable, *_interpreter_flags(len(arguments)), *arguments]
    sys.stdout.flush()
    os.execve(sys.executable, command, environment_with_paddle(os.environ))
    raise AssertionError("execve does not return")


def _mistake(arguments: Sequence[str]) -> str:
    if sys.flags.ignore_environment:
        return "python -E and -I ignore PYTHONPATH, which scripts need to find paddle; omit them"
    if not arguments:
        return "no script was given"
    first = arguments[0]
    if first == "-m":
        return "" if len(arguments) > 1 else "-m needs a module name"
    if first.startswith("-"):
        return f"unknown flag {first}; the script's flags come after its name"
    return "" if os.path.exists(first) else f"script {first!r} does not exist"


def _interpreter_flags(num_arguments: int) -> list[str]:
    """Return this process's interpreter options, such as -u or -W error."""
    *flags, _ = sys.orig_argv[1 : len(sys.orig_argv) - num_arguments]  # the last one is this module
    if flags and flags[-1].startswith("-") and flags[-1].endswith("m"):  # -m, or as in -um
        flags[-1] = flags[-1][:-1]
    return [flag for flag in flags if flag != "-"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
