"""Files by which a worker reports to its launcher what cannot be continued and was left out."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path

__all__ = ["declare_own_loop", "left_out", "own_loop_path", "replaceable_path", "report_left_out"]


_LEFT_OUT = ".left-out"


def own_loop_path(log_dir: str, index: int) -> str:
    """Return the file that marks worker `index` as having a custom training loop."""
    return os.path.join(log_dir, f"worker-{index}.own-loop")


def replaceable_path(memory_dir: str, rank: int) -> str:
    """Return the file that exists while the others can wait for a new process of a lost rank."""
    return os.path.join(memory_dir, f"rank-{rank}.replaceable")


@functools.cache
def declare_own_loop() -> None:
    """Declare that this worker trains in a loop that another process cannot continue.

    `Trainer.fit` and `train_from_dataset` track which of their data the servers have applied. A
    process that repeats a custom loop would train on the same data again, so its launcher ends the
    job instead, unless it is configured to restart such workers. Does nothing outside of a
    launcher.
    """
    marker = os.environ.get("SPARSEFLEET_OWN_LOOP_FILE")
    if marker:
        with contextlib.suppress(OSError):
            Path(marker).touch()
        return
    log_dir, index = os.environ.get("SPARSEFLEET_LOG_DIR"), os.environ.get("SPARSEFLEET_INDEX")
    if not log_dir or not index or os.environ.get("SPARSEFLEET_ROLE") != "worker":
        return
    with contextlib.suppress(OSError):  # then it is as without a launcher
        Path(own_loop_path(log_dir, int(index))).touch()


def report_left_out(rank: int, text: str) -> None:
    """Report to the launcher which data of a lost worker was not trained on; replaces earlier text.

    Does nothing outside of a launcher with durable servers.
    """
    log_dir = os.environ.get("SPARSEFLEET_LOG_DIR")
    if log_dir:
        path = Path(log_dir, f"worker-{rank}{_LEFT_OUT}")
        with contextlib.suppress(OSError):
            draft = path.with_suffix(f".{os.getpid()}")
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)


def left_out(log_dir: str) -> list[str]:
    """Return the texts passed to `report_left_out`, one per lost worker."""
    if not log_dir:
        return []
    return [path.read_text("utf-8") for path in sorted(Path(log_dir).glob(f"worker-*{_LEFT_OUT}"))]
