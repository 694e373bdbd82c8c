"""How many gradient rows were skipped for NaN or infinity, told now and then."""

from __future__ import annotations

import logging
import threading

_log = logging.getLogger("sparsefleet.store")


class RejectedRows:
    """Counts by table. Thread-safe."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, tables: str, count: int) -> None:
        """Warns at the first, and whenever the total has a digit more."""
        with self._lock:
            before = self._counts.get(tables, 0)
            total = self._counts[tables] = before + count
        if len(str(total)) > len(str(before)) or before == 0:
            _log.warning(
                "push to %s: %d gradient rows so far held NaN or infinity and were not applied",
                tables,
                total,
            )
