"""Names that Python had when Fluid scripts were written."""

from __future__ import annotations

import collections
import collections.abc
import time
from typing import Any

__all__ = ["restore_python"]


def restore_python() -> None:
    """Adds what is missing: `time.clock`, and abstract classes in `collections`."""
    _add(time, "clock", time.process_time)
    for name in collections.abc.__all__:
        _add(collections, name, getattr(collections.abc, name))


def _add(owner: Any, name: str, value: Any) -> None:
    if not hasattr(owner, name):
        setattr(owner, name, value)
