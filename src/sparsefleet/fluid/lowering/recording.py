"""Operators under their own names in a profile, and how long each takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from torch.autograd import profiler

__all__ = ["OpTimes", "recorded"]


class OpTimes:
    """How long operators take in the thread that entered it.

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
        """How often operators of this type were run."""
        return self._taken.get(type, (0, 0.0))[0]

    def summary(self) -> str:
        """`type mean ms` of each type of operator, those that took the most time first."""
        found = sorted(self._taken.items(), key=lambda item: -item[1][1])
        return ", ".join(f"{type} {total / count * 1e3:.3f} ms" for type, (count, total) in found)


class _Active(threading.local):
    times: OpTimes | None = None


_active = _Active()


def recorded(type: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, timed within OpTimes; in a profile its calls are `fluid.<type>`."""
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
