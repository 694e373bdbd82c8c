"""Fluid's launchers under their old names."""

__all__ = []
