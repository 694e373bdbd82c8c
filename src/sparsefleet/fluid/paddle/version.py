"""`paddle.version`: the release whose API is provided."""

from __future__ import annotations

__all__ = [
    "FLUID_VERSION",
    "__version__",
    "full_version",
    "major",
    "minor",
    "patch",
    "rc",
    "require_version",
    "show",
]


FLUID_VERSION = "1.8.5"
"""The last release with this API."""


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Raise an error unless the version is in range; "0.0.0.0" stands for any.

    >>> require_version("1.6.0")
    """
    for given in (min_version, max_version):
        if given is not None and not isinstance(given, str):
            raise TypeError(f"require_version takes strings such as '1.6.0', got {given!r}")
    low = _parts(min_version)
    if low > _parts(FLUID_VERSION) or (
        max_version is not None and _parts(max_version) < _parts(FLUID_VERSION)
    ):
        raise Exception(
            f"the program requires Fluid {min_version} to {max_version or 'any'}; this is "
            f"{FLUID_VERSION}"
        )


def _parts(version: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in version.split("."))
    except ValueError:
        raise ValueError(f"a version must be numbers separated by dots, got {version!r}") from None


__version__ = full_version = FLUID_VERSION

major, minor, patch = FLUID_VERSION.split(".")

rc = "0"


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
