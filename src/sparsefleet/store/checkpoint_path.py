"""Paths with the same meaning in every process."""

from __future__ import annotations

import os

__all__ = ["absolute_path"]


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Return an absolute path; a URL (`s3://...`) is returned unchanged.

    >>> absolute_path("s3://bucket/run"), absolute_path("/data/../run")
    ('s3://bucket/run', '/run')
    """
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))
