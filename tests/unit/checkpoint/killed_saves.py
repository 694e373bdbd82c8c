"""Saves over an existing checkpoint and kills itself at one system call after another.

    python -m tests.unit.checkpoint.killed_saves FOLDER

Creates FOLDER/0000, FOLDER/0001 ...: in each, the old checkpoint was complete and the save of the
new one died at that call; the last one completed. The calls are those that change the disk.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.checkpoints import save, two_tables

CALLS = ("fsync", "mkdir", "open", "rename", "replace", "rmdir", "unlink", "write")
OLD, NEW = 1, 2
"""Steps, and seeds of rows, of the two checkpoints."""


def save_one(folder: Path, number: int) -> None:
    save(str(folder), two_tables(number, 40), num_shards=2, step=number)


def die_at(number: int) -> None:
    """Kill the process at the `number`-th call: halfway through a write, before other calls."""
    calls = 0

    def dying(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            if name == "open" and not arguments[1] & os.O_CREAT:
                return real(*arguments, **options)
            calls += 1
            if calls > number:
                if name == "write":
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    for name in CALLS:
        setattr(os, name, dying(name, getattr(os, name)))


def main(folder: Path) -> None:
    old = folder / "old"
    save_one(old, OLD)
    number = 0
    while True:
        place = folder / f"{number:04d}"
        shutil.copytree(old, place)
        child = os.fork()
        if not child:
            die_at(number)
            save_one(place, NEW)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, "the save failed"
            break
        number += 1
    shutil.rmtree(old)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
