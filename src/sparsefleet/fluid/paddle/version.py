"""`paddle.version`, with the release whose API is provided."""

from __future__ import annotations

import re
import warnings

__all__ = [
    "FLUID_VERSION",
    "__version__",
    "commit",
    "full_version",
    "istaged",
    "major",
    "minor",
    "mkl",
    "patch",
    "rc",
    "require_version",
    "show",
    "with_mkl",
]


FLUID_VERSION = "1.8.5"
"""The last release with this API."""


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Raise an error unless the version is in range. Version "0.0.0.0" always passes.

    >>> require_version("1.6.0")
    """
    for given in (min_version, max_version):
        if given is not None and not isinstance(given, str):
            raise TypeError(f"require_version takes strings such as '1.6.0', got {given!r}")
    installed = tuple(int(part) for part in (major, minor, patch, rc))
    low, high = _parts(min_version), None if max_version is None else _parts(max_version)
    if not any(installed):
        warnings.warn(
            "the version is 0.0.0.0, a development version, so it is not checked", stacklevel=2
        )
    elif low > installed or (high is not None and high < installed):
        raise Exception(
            f"the program requires Fluid {min_version} to {max_version or 'the latest'}, but this "
            f"is {'.'.join(map(str, installed[:3]))}"
        )


def _parts(version: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(\.\d+){0,3}", version):
        raise ValueError(f"a version must be 1 to 4 numbers separated by dots, got {version!r}")
    found = [int(part) for part in version.split(".")]
    return (*found, *[0] * (4 - len(found)))


__version__ = full_version = FLUID_VERSION

major, minor, patch = FLUID_VERSION.split(".")

rc = "0"

istaged = True

commit = "sparsefleet"
"""Print the source commit, as in Fluid."""

with_mkl = "OFF"


def mkl() -> str:
    """Return whether Fluid was built with MKL: "OFF"."""
    return with_mkl


def show() -> None:
    """Print the version.

    >>> show()
    full_version: 1.8.5
    major: 1
    minor: 8
    patch: 5
    rc: 0
    """
    for name in ("full_version", "major", "minor", "patch", "rc"):
        print(f"{name}: {globals()[name]}")
