"""Wait for events that matter to a launcher: the end of a child, a signal, or a wake-up."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EndingSignals"]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndingSignals:
    """Counts SIGINT, SIGTERM and SIGHUP while open; these and SIGCHLD interrupt `wait`.

    Must be opened in the main thread, where Python runs signal handlers; any thread may call
    `wake`.
    """

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.count = 0
        """The number of ending signals received so far."""
        self._before: dict[signal.Signals, object] = {}
        self._wakeup_before = -1
        self._receiver, self._sender = socket.socketpair()

    def wait(self, timeout_s: float) -> None:
        """Return on a signal, on `wake`, or after the timeout."""
        self._receiver.settimeout(max(timeout_s, 0.001))
        with contextlib.suppress(TimeoutError):
            self._receiver.recv(4096)

    def wake(self) -> None:
        """Wake the current `wait`, or the next one."""
        with contextlib.suppress(OSError):  # already awake, or no thread is waiting
            self._sender.send(b"\0")

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a job must be launched from the main thread")
        self._sender.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in _ENDING:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # set by nohup
            self._before[number] = signal.signal(number, self._note)
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, _only_wake)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._wakeup_before)
        self._receiver.close()
        self._sender.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.count += 1
        if self.first is None:
            self.first = signal.Signals(number)


def _only_wake(number: int, frame: FrameType | None) -> None:
    """Do nothing. Python itself writes each handled signal to the wakeup descriptor."""
    del number, frame
