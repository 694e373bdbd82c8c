"""From one checkpoint to another, so that a folder of them can be moved as a whole."""

from __future__ import annotations

import os
import posixpath

__all__ = ["relative_path"]


def relative_path(path: str, start: str) -> str:
    """`path` as seen from the folder `start`; a path elsewhere stays whole.

    >>> relative_path("s3://bucket/run/step-1", "s3://bucket/run/step-2")
    '../step-1'
    >>> relative_path("s3://other/run/step-1", "s3://bucket/run/step-2")
    's3://other/run/step-1'
    >>> relative_path("/runs/step-1", "s3://bucket/run/step-2")
    'file:///runs/step-1'
    """
    place, inner = _split(path)
    start_place, start_inner = _split(start)
    if place == start_place:
        return posixpath.relpath(inner, start_inner)
    return path if place else f"file://{inner}"


def _split(path: str) -> tuple[str, str]:
    """Scheme with host or bucket, and the path there."""
    scheme, mark, rest = path.rpartition("://")
    if scheme in ("", "file", "local"):
        return "", os.path.abspath(os.path.expanduser(rest))
    host, _, inner = rest.partition("/")
    return f"{scheme}{mark}{host}", f"/{inner}"
