"""Fluid's launchers, under the module names that its commands use."""

__all__ = ()
