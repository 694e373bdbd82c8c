"""Restricts paths from untrusted input to one directory."""

from __future__ import annotations

import os
from urllib.parse import unquote

from sparsefleet.errors import ConfigError

__all__ = ["Confinement"]

_LOCAL = ("file://", "local://")


class Confinement:
    """A directory or fsspec URL below which all paths must lie.

    On local disks, `..`, `~` and symbolic links are resolved before paths are compared, and files
    are checked when they are opened, so links inside a checkpoint cannot lead out either. URLs
    with `..` are rejected; links of a remote file system are not detected.

    reason: appended to the error, to say who set the root.

    >>> inside = Confinement("s3://bucket/run")
    >>> inside.check("s3://bucket/run/step-1")
    >>> inside.check("s3://bucket/run/../other")
    Traceback (most recent call last):
    sparsefleet.errors.ConfigError: s3://bucket/run/../other is not below s3://bucket/run
    """

    def __init__(self, root: str, reason: str = "") -> None:
        if not root:
            raise ConfigError("the root of a Confinement must be a directory or URL, got ''")
        local = _local_path(root)
        self.root = root if local is None else _real(local)
        self._reason = f"; {reason}" if reason else ""

    def check(self, path: str) -> None:
        """Raise ConfigError unless `path`, as `open_folder` takes it, is the root or below it."""
        local = _local_path(path)
        if "\0" in path or (local is None) != ("://" in self.root):
            inside = False
        elif local is None:
            inside = _is_url_below(path, self.root)
        else:
            inside = os.path.commonpath([_real(local), self.root]) == self.root
        if not inside:
            raise ConfigError(f"{path:.500} is not below {self.root}{self._reason}")


def _local_path(path: str) -> str | None:
    """Return a path on this machine's disks without its scheme; None for other URLs."""
    for prefix in _LOCAL:
        if path.startswith(prefix):
            return path[len(prefix) :]
    return None if "://" in path else path


def _real(path: str) -> str:
    """Resolve a path in the same way as `LocalFolder`, and its links."""
    return os.path.realpath(os.path.abspath(os.path.expanduser(path)))


def _is_url_below(url: str, root: str) -> bool:
    scheme, _, rest = url.partition("://")
    top_scheme, _, top = root.partition("://")
    top = top.rstrip("/")
    # fsspec opens "a://x::b://y" as one file system on top of another; HTTP servers decode %2e.
    if scheme != top_scheme or "::" in rest or "\\" in rest or ".." in unquote(rest).split("/"):
        return False
    return not top or rest.rstrip("/") == top or rest.startswith(f"{top}/")
