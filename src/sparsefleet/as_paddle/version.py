"""`paddle.version`: the release whose API is here."""

from __future__ import annotations

from sparsefleet.fluid.version import FLUID_VERSION

__all__ = ["__version__", "full_version", "major", "minor", "patch", "rc", "show"]

__version__ = full_version = FLUID_VERSION
major, minor, patch = FLUID_VERSION.split(".")
rc = "0"


def show() -> None:
    """Prints the version.

    >>> show()
    full_version: 1.8.5
    major: 1
    minor: 8
    patch: 5
    rc: 0
    """
    for name in ("full_version", "major", "minor", "patch", "rc"):
        print(f"{name}: {globals()[name]}")
