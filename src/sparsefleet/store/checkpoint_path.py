"""Paths that mean the same in every process."""

from __future__ import annotations

import os

__all__ = ["absolute_path"]


def absolute_path(path: str | os.PathLike[str]) -> str:
    """A path from the root; an address (`s3://...`) as it is.

    >>> absolute_path("s3://bucket/run"), absolute_path("/data/../run")
    ('s3://bucket/run', '/run')
    """
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))
