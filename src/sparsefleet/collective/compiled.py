"""Kernel fusion by torch.compile, where there is a compiler."""

from __future__ import annotations

import functools
import logging
import os
import shutil

from torch import nn

__all__ = ["can_compile", "compile_module", "found_compiler", "say_fusion_is_off"]

_log = logging.getLogger("sparsefleet.collective")


def found_compiler() -> str | None:
    """The C++ compiler that torch.compile would use; None if there is none."""
    names = [os.environ.get("CXX", ""), "g++", "clang++", "c++"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


def compile_module(module: nn.Module) -> bool:
    """Has ``module`` compile its forward at the first call, in place; False if that is not
    possible here, which is said once."""
    if not can_compile():
        return False
    module.compile()
    return True


def can_compile() -> bool:
    """Whether torch.compile works here; if not, that is said once."""
    if found_compiler() is None:
        say_fusion_is_off("no C++ compiler was found")
        return False
    return True


@functools.cache
def say_fusion_is_off(reason: str) -> None:
    """Once for each reason."""
    _log.warning("kernel fusion is off: %s; training goes on without it", reason)
