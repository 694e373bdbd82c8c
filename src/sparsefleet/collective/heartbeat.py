"""Who of the ranks is still there: each counts up a number in their store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from datetime import timedelta

from torch._C._distributed_c10d import Store  # typed there only

__all__ = ["Heartbeat"]

_BEAT_S = 0.5
_STOP_S = 2.0
_ANSWER_S = 5.0


class Heartbeat:
    """Beats for this rank from a thread of its own; asked, it listens for the others.

    `store` is for this object alone, as calls to one store wait for each other. Thread-safe.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store
        self._rank = rank
        self._is_store_gone = False
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._store.set_timeout(timedelta(seconds=_ANSWER_S))
        self._store.set(f"beat/{rank}", "0")
        self._thread = threading.Thread(target=self._run, daemon=True, name="collective-heartbeat")
        self._thread.start()

    @property
    def is_store_gone(self) -> bool:
        """Whoever keeps the store did not answer."""
        return self._is_store_gone

    def silent_ranks(self, ranks: Iterable[int], silence_s: float) -> list[int]:
        """Those whose number does not grow for so long; waits as long if there are any.

        Empty if the store is gone: then nothing is known of anybody.
        """
        deadline = time.monotonic() + silence_s
        silent = {rank: self._count(rank) for rank in ranks}
        while silent and not self._is_store_gone and time.monotonic() < deadline:
            time.sleep(_BEAT_S / 2)
            silent = {rank: count for rank, count in silent.items() if self._count(rank) == count}
        return [] if self._is_store_gone else sorted(silent)

    def stop(self) -> None:
        """Beats no more."""
        self._stopping.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        count = 0
        while not self._is_store_gone and not self._stopping.wait(_BEAT_S):
            count += 1
            try:
                with self._lock:
                    self._store.set(f"beat/{self._rank}", str(count))
            except RuntimeError:
                self._is_store_gone = True

    def _count(self, rank: int) -> int:
        """-1 for a rank that never began."""
        key = f"beat/{rank}"
        if self._is_store_gone:
            return -1
        try:
            with self._lock:
                return int(self._store.get(key)) if self._store.check([key]) else -1
        except RuntimeError:
            self._is_store_gone = True
            return -1
