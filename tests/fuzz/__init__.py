"""Fuzz targets in Python: `python -m tests.fuzz --seconds 600 exports checkpoints http`."""
