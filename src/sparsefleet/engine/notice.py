"""Preemption: a process that is asked to exit hands its training over to another process.

SIGTERM asks a process to exit. Under a launcher, it does so only if the launcher's notice file
exists, since the launcher also sends SIGTERM to stop a failed job. There are two ways to hand over.
With checkpoints, all workers pause after the same step and save a checkpoint. With servers whose
state the launcher keeps (`--state-dir`), each worker finishes its step and sends its gradients; the
servers then know which data was trained on.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from sparsefleet.errors import SparseFleetError

if TYPE_CHECKING:
    from typing_extensions import Self

    from sparsefleet.engine.bound_model import BoundModel

__all__ = ["HandedOver", "HandoverPauses", "Notice", "is_state_kept"]

_log = logging.getLogger("sparsefleet.engine")
_LOOK_S = 0.5
_STEP_S = 3.0  # by default, a launcher allows 10 s in total


class HandedOver(SystemExit):
    """Exits the process with code 75, which asks the launcher to start it elsewhere."""

    def __init__(self) -> None:
        super().__init__(os.EX_TEMPFAIL)


def is_state_kept() -> bool:
    """Return whether the launcher keeps the servers' state, from which another job can continue."""
    return os.environ.get("SPARSEFLEET_STATE_KEPT") == "1"


class Notice:
    """While open, tracks whether this process was asked to exit.

    is_heeded: if False, SIGTERM keeps its default action, which stops the process at once.
    may_abort: whether to abandon a slow step, such as a step that waits for a worker that has
        already exited. Nothing is lost, since servers track what was applied.
    """

    def __init__(self, *, is_heeded: bool, may_abort: bool) -> None:
        self._file = os.environ.get("SPARSEFLEET_NOTICE_FILE", "")
        self.is_heeded = is_heeded
        """Whether this process hands over when it is asked to exit."""
        self._may_abort = may_abort
        self._is_given = False
        self._is_overdue = False
        self._looked_at = 0.0
        self._handles = False
        self._timer: threading.Timer | None = None

    @property
    def start(self) -> str:
        """Return an ID for this start of the job, which is the same on all workers."""
        return self._file

    @property
    def is_given(self) -> bool:
        """Return whether this process should hand over. Thread-safe."""
        if not self._is_given and self.is_heeded and self._file and not self._handles:
            now = time.monotonic()
            if now - self._looked_at >= _LOOK_S:
                self._looked_at = now
                self._is_given = os.path.exists(self._file)
        return self._is_given

    def __enter__(self) -> Self:
        in_main = threading.current_thread() is threading.main_thread()
        # If the script has a handler, leave the decision to it.
        if self.is_heeded and in_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._receive)
            self._handles = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._handles:
            return
        self._handles = False
        if not isinstance(error, HandedOver):
            # Set the C handler first: Python would drop a signal that arrives while it replaces its
            # handler.
            ctypes.CDLL(None).signal(signal.SIGTERM, None)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if error is not None or not self._is_given:
                return
        # A second SIGTERM while the interpreter exits must not change the exit code.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if error is None:  # nobody has checked since the signal arrived
            raise HandedOver

    def heed(self) -> None:
        """Raise `HandedOver` if this process should hand over.

        Call it when this process has no gradients left to send.
        """
        if self._handles and self._is_given:
            raise HandedOver

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._is_overdue:
            self._is_overdue = False  # a further signal must not interrupt the hand-over
            raise HandedOver
        if self._file and not os.path.exists(self._file):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if not self._is_given:
            self._is_given = True
            _log.warning("received SIGTERM: this worker finishes its step and hands over")
            if self._may_abort and self._handles:
                self._timer = threading.Timer(_STEP_S, self._abort)
                self._timer.daemon = True
                self._timer.start()

    def _abort(self) -> None:
        """Make the main thread raise, even if it is waiting in a call."""
        if self._handles:
            self._is_overdue = True
            _log.warning("the step did not finish within %g s and is abandoned", _STEP_S)
            ident = threading.main_thread().ident
            assert ident is not None
            signal.pthread_kill(ident, signal.SIGTERM)


class HandoverPauses:
    """Pauses the threads of one worker after a notice; implements `Pauses`."""

    def __init__(self, distributed: BoundModel, notice: Notice) -> None:
        self._distributed = distributed
        self._notice = notice

    def is_due(self, step: int) -> bool:
        del step
        return self._notice.is_given

    def run(self) -> None:
        """Send this worker's pending gradients, then exit; the servers hold all other state."""
        try:
            self._distributed.flush()
        except (
            SparseFleetError
        ) as error:  # the same happens if the worker is killed; nothing is lost
            _log.warning(
                "some gradients were not sent; their data will be trained on again: %s", error
            )
        raise HandedOver
