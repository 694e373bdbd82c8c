"""Bring data into programs: Datasets that read files, and loaders and feeders for Python data."""

__all__ = ()
