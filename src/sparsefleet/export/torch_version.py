"""Which torch can export."""

from __future__ import annotations

import torch

from sparsefleet.errors import ConfigError

__all__ = ["require_torch"]

# The first whose graph files are read without unpickling, and whose modules leave checks out.
_WANTED = (2, 9)


def require_torch(version: str = torch.__version__) -> None:
    """Raises ConfigError if torch is too old.

    >>> require_torch("2.4.1+cpu")
    Traceback (most recent call last):
    ...
    sparsefleet.errors.ConfigError: exported models need torch >= 2.9, this is 2.4.1+cpu
    """
    major, minor, *_ = version.split(".")
    if (int(major), int(minor)) < _WANTED:
        wanted = ".".join(map(str, _WANTED))
        raise ConfigError(f"exported models need torch >= {wanted}, this is {version}")
