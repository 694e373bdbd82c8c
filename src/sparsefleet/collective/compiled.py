"""Kernel fusion by torch.compile, where there is a compiler."""

from __future__ import annotations

import functools
import logging
import os
import shutil

from torch import nn

__all__ = ["compile_module", "found_compiler"]

_log = logging.getLogger("sparsefleet.collective")


def found_compiler() -> str | None:
    """The C++ compiler that torch.compile would use; None if there is none."""
    names = [os.environ.get("CXX", ""), "g++", "clang++", "c++"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


def compile_module(module: nn.Module) -> bool:
    """Has ``module`` compile its forward at the first call, in place; False if there is no
    compiler, which is said once."""
    if found_compiler() is None:
        _say_once("no C++ compiler was found")
        return False
    module.compile()
    return True


@functools.cache
def _say_once(reason: str) -> None:
    _log.warning("kernel fusion is off: %s; training goes on without it", reason)
