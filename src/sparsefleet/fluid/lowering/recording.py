"""Record operators by name in profiles, and measure the time that each operator takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from torch.autograd import profiler

__all__ = ["OpTimes", "recorded"]


class OpTimes:
    """Measures operator times in the thread that enters this context manager.

    >>> with OpTimes() as times:
    ...     recorded("relu", lambda x: max(x, 0))(-1)
    0
    >>> times.summary().split()[0]
    'relu'
    """

    def __init__(self) -> None:
        self._taken: dict[str, tuple[int, float]] = {}

    def __enter__(self) -> OpTimes:
        _active.times = self
        return self

    def __exit__(self, *error: object) -> None:
        _active.times = None

    def add(self, type: str, seconds: float) -> None:
        count, total = self._taken.get(type, (0, 0.0))
        self._taken[type] = (count + 1, total + seconds)

    def calls(self, type: str) -> int:
        """Return how many times operators of this type ran."""
        return self._taken.get(type, (0, 0.0))[0]

    def summary(self) -> str:
        """Return `type mean ms` for each operator type, slowest in total first."""
        found = sorted(self._taken.items(), key=lambda item: -item[1][1])
        return ", ".join(f"{type} {total / count * 1e3:.3f} ms" for type, (count, total) in found)


class _Active(threading.local):
    times: OpTimes | None = None


_active = _Active()


def recorded(type: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that OpTimes measures it and profiles show it as `fluid.<type>`."""
    label = f"fluid.{type}"

    def run(*args: Any, **kwargs: Any) -> Any:
        times = _active.times
        if times is not None:
            begin = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                times.add(type, time.perf_counter() - begin)
        if not profiler._is_profiler_enabled:
            return call(*args, **kwargs)
        with profiler.record_function(label):
            return call(*args, **kwargs)

    run.__name__ = run.__qualname__ = type
    return run
