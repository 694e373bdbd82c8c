"""Records that are loaded in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sparsefleet.data import MemoryData

__all__ = ["Preload"]


class Preload:
    """A load in a thread of its own."""

    def __init__(self, load: Callable[[], MemoryData]) -> None:
        self._load = load
        self._data: MemoryData | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sparsefleet-preload", daemon=True)
        self._thread.start()

    def result(self) -> MemoryData:
        self._thread.join()  # reading has deadlines of its own
        if self._error is not None:
            raise self._error
        assert self._data is not None
        return self._data

    def _run(self) -> None:
        try:
            self._data = self._load()
        except BaseException as error:  # the thread's edge: raised by `result`
            self._error = error
