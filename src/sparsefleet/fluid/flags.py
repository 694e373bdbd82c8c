"""FLAGS_ settings, which Fluid reads from the environment when it is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from sparsefleet.errors import ConfigError

__all__ = ["get_flags", "given_flag", "set_flags"]

_given: dict[str, Any] = {}


def set_flags(flags: Mapping[str, Any]) -> None:
    """Takes settings by names that begin with FLAGS_.

    FLAGS_fuse_parameter_memory_size and FLAGS_fuse_parameter_groups_size count for collective
    programs that are run for the first time later, before the environment. Others are about
    Fluid's own memory and kernels: nothing here changes by them, but they can be read again.

    >>> set_flags({"FLAGS_eager_delete_tensor_gb": 1.0})
    >>> get_flags("FLAGS_eager_delete_tensor_gb")
    {'FLAGS_eager_delete_tensor_gb': 1.0}
    """
    if not isinstance(flags, Mapping):
        raise TypeError(f"set_flags takes a dict, got {flags!r}")
    for name, value in flags.items():
        if not str(name).startswith("FLAGS_"):
            raise ValueError(f"the name of a flag begins with FLAGS_, got {name!r}")
        _given[name] = value


def given_flag(name: str) -> float | None:
    """The number that `set_flags` was given for it; None without."""
    value = _given.get(name)
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"set_flags: {name} must be a number, got {value!r}") from None


def get_flags(flags: str | Sequence[str]) -> dict[str, Any]:
    """What was set, else what the environment says; ValueError for a flag that nobody set."""
    names = [flags] if isinstance(flags, str) else list(flags)
    found = {}
    for name in names:
        value = _given.get(name, os.environ.get(name))
        if value is None:
            raise ValueError(f"flag {name!r} was not set by set_flags or in the environment")
        found[name] = value
    return found
