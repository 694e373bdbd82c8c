"""Checkpoint settings, and the schedule that decides at which step all workers save."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sparsefleet.errors import DeadlineError, NotFoundError, SparseFleetError
from sparsefleet.field_checks import require, require_bool, require_int, require_positive
from sparsefleet.fleet.board import Board

__all__ = ["CheckpointConfig", "Interval", "SaveSchedule"]

HANDOVER = "handover"
"""The action that is due when workers should hand over their training."""

_LOOK_EVERY_STEPS = 8  # if workers step together, they check for requests this often
_LISTEN_S = 1.0  # a wait on the servers cannot be canceled, so it is split up


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """A series of checkpoints in one directory, written while training continues.

    >>> CheckpointConfig(directory="checkpoints", every_steps=1000).keep
    3
    """

    directory: str | os.PathLike[str]
    """The directory of the series; each checkpoint is a subdirectory `step-<number>`. All servers
    and worker 0 must be able to access it under this name, through a shared file system or a URL
    that fsspec supports (`s3://...`).
    """

    job: str | None = None
    """The name of the job that owns the directory; other jobs can neither resume from it nor save
    to it. Defaults to SPARSEFLEET_JOB, or to the script and a digest of its arguments, so set it if
    a job's arguments change between runs.
    """

    every_steps: int | None = None
    """Save when a worker has taken this many steps since the last save. If threads step together
    (sync, half_async, hybrid), their common step is counted once.
    """

    every_s: float | None = None
    """Save this many seconds after the last save, or earlier if `every_steps` is reached."""

    each_epoch: bool = True
    """Save at the end of each epoch. The last epoch is always saved."""

    keep: int = 3
    """Number of checkpoints to keep; older ones are removed, except those that newer ones need."""

    deltas_between_fulls: int = 0
    """Number of saves after a full save that contain only the rows changed since the previous save.
    With larger values, less is written but more files are read when loading. Values above 0 need 4
    more bytes of memory per row.
    """

    skip_while_writing: bool = True
    """Skip a save that is due while the previous checkpoint is still being written. If False,
    training waits for the disk instead.
    """

    timeout_s: float = 3600.0
    """Abandon a save that takes longer than this; training continues."""

    storage_options: Mapping[str, Any] | None = None
    """Options for fsspec, such as credentials; they are also sent to the servers."""

    def __post_init__(self) -> None:
        require(bool(os.fspath(self.directory)), self, "directory", "a path")
        require(self.job is None or isinstance(self.job, str), self, "job", "a name")
        if self.every_steps is not None:
            require_int(self, "every_steps", 1, 2**62)
        if self.every_s is not None:
            require_positive(self, "every_s")
        require_bool(self, "each_epoch")
        require_bool(self, "skip_while_writing")
        require_int(self, "keep", 1, 1_000_000)
        require_int(self, "deltas_between_fulls", 0, 1_000_000)
        require_positive(self, "timeout_s")


class Interval:
    """Tracks when an event is due again, by steps or seconds since the last one. Not thread-safe.

    >>> interval = Interval(every_steps=3, every_s=None)
    >>> interval.is_count(2), interval.is_count(3), interval.is_time()
    (False, True, False)
    """

    def __init__(self, every_steps: int | None, every_s: float | None) -> None:
        self._every_steps = every_steps
        self._every_s = every_s
        self.steps = 0
        """Number of steps that this worker has taken since the last event."""
        self.done_at = 0
        """The step of the last event, if workers step together."""
        self.restart(0)

    @property
    def has_clock(self) -> bool:
        """Return whether the interval depends on time."""
        return self._every_s is not None

    def restart(self, steps: int) -> None:
        """Restart the interval from now; `steps` is the current step if workers step together."""
        self.steps = 0
        self.done_at = steps
        self._since = time.monotonic()

    def is_time(self) -> bool:
        """Return whether the event is due because enough time has passed."""
        return self._every_s is not None and time.monotonic() - self._since >= self._every_s

    def is_count(self, steps: int) -> bool:
        """Return whether the event is due `steps` steps after the last event."""
        return self._every_steps is not None and steps >= self._every_steps


class SaveSchedule:
    """Decides for each step whether to pause after it. Thread-safe.

    The worker that first finds something due posts a numbered request on the board. If workers run
    independently, a thread listens for requests, and each worker pauses when it sees one. If they
    step together, all must pause after the same step. For an interval in steps, every worker
    determines that step on its own, since all have the same step count. For an interval in time,
    the request names a step that no worker can have passed without checking.

    intervals: the intervals by name.
    name: identifies this training run on the board.
    """

    def __init__(
        self,
        intervals: Mapping[str, Interval],
        board: Board,
        *,
        name: str,
        is_alone: bool,
        steps_together: Literal["nobody", "threads", "workers"],
        notice: Callable[[], bool] | None = None,
    ) -> None:
        """Create a schedule.

        notice: returns whether this worker should hand over; the hand-over is then due at once.
        """
        self._notice = notice
        self._intervals = intervals
        self._board = board
        self._name = name
        self._is_alone = is_alone
        self._agrees_on_step = steps_together == "workers" and not is_alone
        self._number = 0
        self._changed = threading.Condition()
        self._heard = False
        self._closed = False
        self._before_pass = 0
        self._found: set[str] = set()
        self._listener: threading.Thread | None = None
        if not is_alone and not self._agrees_on_step:
            self._listener = threading.Thread(
                target=self._listen, name="sparsefleet-save-requests", daemon=True
            )
            self._listener.start()

    def is_due(self, step: int) -> bool:
        """Return whether to pause after `step`; implements `Pauses`."""
        if self._agrees_on_step:
            return self._is_agreed(step)
        for interval in self._intervals.values():
            interval.steps += step > 0
        if self._heard:
            return True
        found = {n for n, i in self._intervals.items() if i.is_time() or i.is_count(i.steps)}
        if self._notice is not None and self._notice():
            found.add(HANDOVER)
        if not found:
            return False
        self._found |= found
        if not self._is_alone:
            self._request(step)
        self._heard = True
        return True

    @property
    def found(self) -> Collection[str]:
        """Return the actions that this worker has found due since the last pause."""
        return self._found

    def state(self) -> dict[str, Any]:
        """Return the state for a process that replaces this one; call it after a pause."""
        done_at = {name: each.done_at for name, each in self._intervals.items()}
        return {"number": self._number, "done_at": done_at}

    def continue_from(self, state: Mapping[str, Any]) -> None:
        """Continue from the `state()` of the process that this one replaces."""
        with self._changed:
            self._number = int(state["number"])
            self._changed.notify_all()
        for name, steps in state["done_at"].items():
            if name in self._intervals:
                self._intervals[name].restart(int(steps))

    def begin_pass(self, steps: int) -> None:
        """Start a pass; if workers step together, all have taken `steps` steps so far."""
        self._before_pass = steps

    def end_pause(self, steps: int, *, done: Collection[str]) -> None:
        """Record that all workers have paused, after `steps` steps if they step together.

        done: the completed actions; the other actions stay due.
        """
        if not self._is_alone:
            with contextlib.suppress(NotFoundError):
                self._board.delete_note(self._request_name)
        with self._changed:
            for name in set(done) & self._intervals.keys():
                self._intervals[name].restart(steps)
            self._found = set()
            self._number += 1
            self._heard = False
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the listening thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._listener is not None:
            self._listener.join(2 * _LISTEN_S)

    def _is_agreed(self, step: int) -> bool:
        taken = self._before_pass + step
        counted = {n for n, i in self._intervals.items() if i.is_count(taken - i.done_at)}
        self._found |= counted
        if counted:
            return True
        has_clock = any(interval.has_clock for interval in self._intervals.values())
        if (self._notice is None and not has_clock) or taken % _LOOK_EVERY_STEPS:
            return False
        try:
            return int(self._board.get_note(self._request_name)) == taken
        except NotFoundError:
            timed = {name for name, each in self._intervals.items() if each.is_time()}
            if self._notice is not None and self._notice():
                timed.add(HANDOVER)
            self._found |= timed
            if timed:
                self._request(taken + _LOOK_EVERY_STEPS)
            return False

    @property
    def _request_name(self) -> str:
        return f"{self._name}/save/{self._number}"

    def _request(self, step: int) -> None:
        self._board.put_note(self._request_name, str(step).encode())

    def _listen(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or not self._heard)
                if self._closed:
                    return
                number, name = self._number, self._request_name
            try:
                self._board.get_note(name, wait=True, timeout_s=_LISTEN_S)
            except DeadlineError:
                continue
            except SparseFleetError:
                return  # the training threads hit the same error and report it
            with self._changed:
                if number == self._number:
                    self._heard = True
