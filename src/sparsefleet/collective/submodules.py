"""Submodules by name, as configs give them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from sparsefleet.errors import ConfigError

__all__ = ["submodules_named"]


def submodules_named(module: nn.Module, names: Iterable[str], field: str) -> list[nn.Module]:
    """The submodules of these names; ``field`` is whose names they are, for the error.

    >>> submodules_named(nn.Sequential(nn.Linear(2, 2)), ["0"], "recompute")
    [Linear(in_features=2, out_features=2, bias=True)]
    """
    known = dict(module.named_modules())
    found = []
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{field} names '{name}', which is no submodule of {type(module).__name__}; it "
                f"has: {', '.join(filter(None, known)) or 'none'}"
            )
        found.append(known[name])
    return found
