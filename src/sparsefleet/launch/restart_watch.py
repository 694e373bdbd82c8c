"""Watch processes that were restarted alone until they are back, and inform the others.

Other processes wait for a lost process for `SPARSEFLEET_FAILOVER_WAIT_S`. A restart on a busy
machine may take longer, so no process gives up while the launcher is still restarting the lost one.
Workers on this machine learn about a server from a note, a file that is rewritten until the server
listens; servers learn about a worker through a command.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from sparsefleet.launch.child_process import ChildProcess
from sparsefleet.launch.lost_workers import LostWorkers

__all__ = ["RestartWatch"]

_NOTE_S = 1.0
_REPORT_S = 5.0
_SETTLE_S = 20.0  # a server may mistake the old process's connections for the new one's
_MOST_S = 600.0


@dataclass(slots=True)
class _Watched:
    child: ChildProcess
    number: int
    began: float
    next_report: float
    listened_before: float


class RestartWatch:
    """Tracks the unfinished restarts on one node. Not thread-safe.

    state_dir: where notes are written. listens_since: returns when a server last began to listen.
        Only changes of that time matter, since the system's clock may be set meanwhile.
    """

    def __init__(
        self,
        state_dir: str,
        lost_workers: LostWorkers,
        listens_since: Callable[[ChildProcess], float],
    ) -> None:
        self._state_dir = state_dir
        self._lost_workers = lost_workers
        self._listens_since = listens_since
        self._watched: dict[str, _Watched] = {}

    def restarted(self, child: ChildProcess, number: int) -> None:
        """Record that a process was restarted for the `number`th time."""
        if self._state_dir and child.plan.role in ("server", "worker"):
            listened = self._listens_since(child)
            self._watched[child.name] = _Watched(child, number, time.monotonic(), 0.0, listened)
            self.look()

    def look(self) -> None:
        """Report the processes that are not back yet; must be called often."""
        now = time.monotonic()
        for name, watched in list(self._watched.items()):
            if now < watched.next_report:
                continue
            if self._is_over(watched, now):
                del self._watched[name]
                with contextlib.suppress(OSError):
                    os.remove(self._note(watched.child))
            elif watched.child.plan.role == "server":
                watched.next_report = now + _NOTE_S
                self._write_note(watched, now)
            else:
                watched.next_report = now + _REPORT_S
                self._lost_workers.expect(watched.child.plan.index)

    def _is_over(self, watched: _Watched, now: float) -> bool:
        child, since_s = watched.child, now - watched.began
        if not child.is_running or since_s > _MOST_S:
            return True
        if child.plan.role == "server":
            return self._listens_since(child) != watched.listened_before
        return since_s > _SETTLE_S and self._lost_workers.is_back(child.plan.index)

    def _note(self, child: ChildProcess) -> str:
        """Return the path of a server's note, which core/client/restart_note.cc reads."""
        return os.path.join(self._state_dir, f"server-{child.plan.index}.restarting")

    def _write_note(self, watched: _Watched, now: float) -> None:
        path = self._note(watched.child)
        with contextlib.suppress(OSError):  # other processes then wait as long as without it
            with open(f"{path}.tmp", "w", encoding="ascii") as file:
                file.write(
                    f"the launcher restarted it {now - watched.began:.0f} s ago (restart "
                    f"{watched.number}, pid {watched.child.pid}), and it is not listening yet"
                )
            os.replace(f"{path}.tmp", path)
