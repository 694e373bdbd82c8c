"""Fluid's launchers under the names of their commands."""

__all__ = ()
