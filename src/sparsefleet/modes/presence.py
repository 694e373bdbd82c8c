"""Which training threads of this worker still have data in this pass."""

from __future__ import annotations

import threading

from sparsefleet.errors import ConfigError


class Presence:
    """Counts the threads that have not left. Thread-safe."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._present = threads
        self._lock = threading.Lock()

    @property
    def present(self) -> int:
        """Threads that have not left."""
        return self._present

    def leave(self) -> int:
        """One thread fewer; returns how many are left."""
        with self._lock:
            if not self._present:
                raise ConfigError(f"all {self._threads} threads have left this pass already")
            self._present -= 1
            return self._present

    def set_threads(self, threads: int) -> None:
        """So many are present; if all have left, from ``rejoin`` on."""
        with self._lock:
            self._threads = threads
            self._present = threads if self._present else 0

    def rejoin(self) -> None:
        """All are back."""
        with self._lock:
            self._present = self._threads
