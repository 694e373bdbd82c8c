"""Reports training loops that a worker's replacement cannot continue, and data that was skipped.

With a launcher, reports are files that the launcher reads. Without a launcher, a note on the
servers informs a process that it had a predecessor.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Protocol

from sparsefleet.errors import ConfigError, NotFoundError
from sparsefleet.job_id import counts_restarts, job_id

__all__ = ["declare_own_loop", "left_out", "own_loop_path", "replaceable_path", "report_left_out"]


_LEFT_OUT = ".left-out"
_REPEATS = "SPARSEFLEET_REPEAT_OWN_LOOP"
_PROCESS = secrets.token_bytes(8)
_declared: set[tuple[str, str]] = set()


class Notes(Protocol):
    """Notes by key that live as long as the servers' state; see `Store`."""

    def put_note(self, key: str, value: bytes) -> None: ...

    def get_note(self, key: str) -> bytes: ...


def own_loop_path(log_dir: str, index: int) -> str:
    """Return the path of the file that marks worker `index` as having a custom training loop."""
    return os.path.join(log_dir, f"worker-{index}.own-loop")


def replaceable_path(memory_dir: str, rank: int) -> str:
    """Return the path of a file that exists while the other workers can wait for this rank's
    replacement."""
    return os.path.join(memory_dir, f"rank-{rank}.replaceable")


def declare_own_loop(notes: Notes, worker: str) -> None:
    """Declare that this process trains in a loop that no other process can continue.

    `Trainer.fit` and `train_from_dataset` track which of their data the servers have applied. A
    process that repeats a custom loop would train on the same data again. The launcher therefore
    stops the job instead of restarting such a worker, unless it is configured to restart it.
    Without a launcher, the declaration is stored on the servers, and this function raises
    ConfigError if an earlier process of the same worker and job has made the declaration. Servers
    that restart without their state lose the declaration.

    notes: the store of the worker. worker: the worker's name in the job.
    """
    job = job_id()
    declared = (job, worker)
    if declared in _declared:
        return
    if job and not counts_restarts() and os.environ.get(_REPEATS) != "1":
        _require_first(notes, f"own-loop/{job}/{worker}", worker)
    _mark()
    _declared.add(declared)


def _require_first(notes: Notes, note: str, worker: str) -> None:
    try:
        before = notes.get_note(note)
    except NotFoundError:
        notes.put_note(note, _PROCESS)
        return
    if before != _PROCESS:
        raise ConfigError(
            f"{worker} cannot be continued: the previous process trained in a custom loop "
            "(fleet.step, Executor.run, RemoteStore), and repeating it would train on the same "
            f"data again: start a new job, or set {_REPEATS}=1 if the script continues its loop "
            "itself"
        )


def _mark() -> None:
    """Create the file that informs the launcher; do nothing without a launcher."""
    marker = os.environ.get("SPARSEFLEET_OWN_LOOP_FILE", "")
    log_dir, index = os.environ.get("SPARSEFLEET_LOG_DIR"), os.environ.get("SPARSEFLEET_INDEX")
    if not marker and log_dir and index and os.environ.get("SPARSEFLEET_ROLE") == "worker":
        marker = own_loop_path(log_dir, int(index))
    if marker:
        with contextlib.suppress(OSError):  # continue as without a launcher
            Path(marker).touch()


def report_left_out(rank: int, text: str) -> None:
    """Report to the launcher which of a lost worker's data was skipped; replaces an earlier report.

    Does nothing without a launcher and durable servers.
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
