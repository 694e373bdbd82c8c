"""The background thread that merges queued gradients and brings them to the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sparsefleet.errors import WorkerError
from sparsefleet.modes.gradient_queue import GradientQueue
from sparsefleet.modes.mode_setting import StepGradients


class GradientSender:
    """Takes copies from a bounded queue and calls ``send`` with a few of them at a time.

    An error of ``send`` ends the thread and is raised by every later call. Thread-safe.
    """

    def __init__(
        self,
        send: Callable[[Sequence[StepGradients]], None],
        *,
        max_merge: int,
        queue_size: int,
        linger_s: float,
        wait_s: float,
    ) -> None:
        self._send = send
        self._max_merge = max_merge
        self._linger_s = linger_s
        self._wait_s = wait_s
        self._queue = GradientQueue(queue_size, wait_s=wait_s)
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()

    def put(self, gradients: StepGradients, *, max_open: int | None = None) -> float:
        """Hands over one copy; seconds blocked by a full queue or by ``max_open``."""
        if self._thread is None:
            self._start()
        return self._queue.put(gradients, max_open=max_open)

    def wait_empty(self) -> None:
        """Returns when all that was put in is applied."""
        self._queue.wait_empty()

    @property
    def open_copies(self) -> int:
        """Copies put in and not yet applied."""
        return self._queue.open_copies

    def fail(self, worker_index: int, error: BaseException) -> None:
        """Wakes all who wait; nothing more is sent."""
        wrapped = WorkerError({worker_index: error})
        wrapped.__cause__ = error
        self._queue.fail(wrapped)

    def end(self) -> None:
        """Ends the thread; what is queued is sent first, unless something failed."""
        self._queue.close()
        if self._thread is not None:
            self._thread.join(self._wait_s)

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="gradient-sender", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while copies := self._queue.take(self._max_merge, self._linger_s):
            try:
                self._send(copies)
            except BaseException as error:  # raised again in the training threads
                self._queue.fail(error)
                return
            self._queue.applied(len(copies))
