"""The mode of programs, which is the only one."""

from __future__ import annotations

__all__ = ["enable_static"]


def enable_static() -> None:
    """Nothing to do: layers add operators to programs, always."""
