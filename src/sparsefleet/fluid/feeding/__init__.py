"""Brings data into programs: Datasets that read files, loaders and feeders of Python data."""

__all__ = ()
