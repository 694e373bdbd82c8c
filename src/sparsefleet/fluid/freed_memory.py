"""Memory that runs have freed and this process still holds, for the next run."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

__all__ = ["give_back_freed_memory"]


def give_back_freed_memory() -> None:
    """Lets the system, and other users of a GPU, have it; the next run gets new memory."""
    trim = _trim()
    if trim is not None:
        trim(0)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


@cache
def _trim() -> Any:
    """glibc's; None where that is not the C library."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
