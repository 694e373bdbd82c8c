"""The version of Fluid that programs find."""

from __future__ import annotations

__all__ = ["FLUID_VERSION", "require_version"]

FLUID_VERSION = "1.8.5"
"""The last one with the API that is here."""


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Raises unless the version is within; "0.0.0.0" stands for any.

    >>> require_version("1.6.0")
    """
    for given in (min_version, max_version):
        if given is not None and not isinstance(given, str):
            raise TypeError(f"require_version takes texts such as '1.6.0', got {given!r}")
    low = _parts(min_version)
    if low > _parts(FLUID_VERSION) or (
        max_version is not None and _parts(max_version) < _parts(FLUID_VERSION)
    ):
        raise Exception(
            f"the program wants Fluid {min_version} to {max_version or 'any'}; here it is "
            f"{FLUID_VERSION}"
        )


def _parts(version: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in version.split("."))
    except ValueError:
        raise ValueError(f"a version is numbers with dots, got {version!r}") from None
