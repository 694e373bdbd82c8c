"""Tells the launcher that a worker cannot be restarted alone."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path

__all__ = ["declare_own_loop", "own_loop_path"]


def own_loop_path(log_dir: str, index: int) -> str:
    """Return the file that says that worker `index` has a training loop of its own."""
    return os.path.join(log_dir, f"worker-{index}.own-loop")


@functools.cache
def declare_own_loop() -> None:
    """Declare that this worker trains in a loop that nobody can continue in another process.

    `Trainer.fit` and `train_from_dataset` know which of their data the servers have applied. A
    process that repeats a loop of its own would train the same data again, so its launcher ends the
    job instead, unless it was told to restart such workers. Does nothing outside of a launcher.
    """
    log_dir, index = os.environ.get("SPARSEFLEET_LOG_DIR"), os.environ.get("SPARSEFLEET_INDEX")
    if not log_dir or not index or os.environ.get("SPARSEFLEET_ROLE") != "worker":
        return
    with contextlib.suppress(OSError):  # then it is as without a launcher
        Path(own_loop_path(log_dir, int(index))).touch()
