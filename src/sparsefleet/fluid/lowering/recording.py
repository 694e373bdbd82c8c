"""Operators under their own names in a profile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.autograd import profiler

__all__ = ["recorded"]


def recorded(type: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; while a profile is taken its calls are in it as `fluid.<type>`."""
    label = f"fluid.{type}"

    def run(*args: Any, **kwargs: Any) -> Any:
        if not profiler._is_profiler_enabled:
            return call(*args, **kwargs)
        with profiler.record_function(label):
            return call(*args, **kwargs)

    run.__name__ = run.__qualname__ = type
    return run
