"""Ids on their way into a table.

Letters: N ids of all lookups, U distinct ones, D row width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.errors import ShapeError
from sparsefleet.store.arrays import Keys
from sparsefleet.store.store import Unknown

Inverse = NDArray[np.uint32]
Identity = tuple[Any, ...]

_KEY_MASK = 2**64 - 1


class Lookup:
    """Ids looked up in one table: int64 of any shape, on the CPU.

    Ids equal to ``padding_id`` have no row: they read as zeros and give no gradient. Other
    negative ids are keys like any others, taken bit for bit as uint64. Who makes one has
    checked the ids (`check_ids`).

    >>> Lookup("ads", 8, torch.tensor([[3, 4], [4, 0]]), padding_id=0)
    Lookup('ads', 8, ids of shape (2, 2))
    """

    __slots__ = ("dim", "ids", "padding_id", "table", "unknown", "version")

    def __init__(
        self,
        table: str,
        dim: int,
        ids: torch.Tensor,
        *,
        padding_id: int | None = None,
        unknown: Unknown = "zeros",
    ) -> None:
        self.table = table
        self.dim = dim
        self.ids = ids
        self.padding_id = padding_id
        self.unknown: Unknown = unknown
        # Inference tensors count no changes; nobody rewrites ids between pull and lookup there.
        self.version = -1 if ids.is_inference() else ids._version

    def identity(self) -> Identity:
        """Equal for two lookups that read the same ids, unchanged, in the same memory."""
        ids = self.ids
        return (
            self.table,
            ids.data_ptr(),
            ids.shape,
            ids.stride(),
            self.version,
            self.padding_id,
        )

    def __repr__(self) -> str:
        return f"Lookup({self.table!r}, {self.dim}, ids of shape {tuple(self.ids.shape)})"


def check_ids(table: str, ids: object) -> None:
    """Raises unless ``ids`` is an int64 tensor on the CPU."""
    if isinstance(ids, torch.Tensor) and ids.dtype is torch.int64 and ids.is_cpu:
        return
    what = f"table '{table}': ids must be an int64 tensor on the CPU"
    if not isinstance(ids, torch.Tensor):
        raise ShapeError(f"{what}, got {type(ids).__name__}; make one with torch.as_tensor")
    if ids.dtype is not torch.int64:
        hint = "" if ids.is_floating_point() else "; convert them with .long()"
        raise ShapeError(f"{what}, got {ids.dtype}{hint}")
    raise ShapeError(f"{what}, got one on {ids.device}; move them with .cpu()")


def unique_keys(lookups: Sequence[Lookup]) -> tuple[Keys, Inverse]:
    """The distinct keys uint64[U] of lookups of one table, and where each id went: uint32[N].

    The ids of the lookups count one after another; padding goes to ``_core.PADDING_PLACE``.
    """
    padding = []
    end = 0
    for lookup in lookups:
        begin = end
        end += lookup.ids.numel()
        if lookup.padding_id is not None:
            padding.append((begin, end, lookup.padding_id & _KEY_MASK))
    # By NumPy: every operator of torch gives the GIL away and has to get it back.
    flat = [lookup.ids.numpy().reshape(-1) for lookup in lookups]
    ids = np.ascontiguousarray(flat[0]) if len(flat) == 1 else np.concatenate(flat)
    return _core.unique(ids.view(np.uint64), padding)


def check_offsets(table: str, offsets: torch.Tensor, num_ids: int, *, closed: bool) -> None:
    """Raises unless ``offsets`` cut ``num_ids`` ids into bags.

    They start at 0, never fall and stay within the ids; with ``closed`` the last one is the end.
    """
    what = f"table '{table}': offsets"
    if not isinstance(offsets, torch.Tensor) or offsets.dtype is not torch.int64:
        found = getattr(offsets, "dtype", type(offsets).__name__)
        raise ShapeError(f"{what} must be an int64 tensor, got {found}; convert with .long()")
    if offsets.dim() != 1 or not offsets.is_cpu:
        raise ShapeError(
            f"{what} must have one dimension and be on the CPU, got shape "
            f"{tuple(offsets.shape)} on {offsets.device}"
        )
    if offsets.numel() == 0:
        if closed:
            raise ShapeError(f"{what} are empty: with include_last_offset there is at least one")
        if num_ids:
            raise ShapeError(f"{what} are empty, but there are {num_ids} ids: no bag holds them")
        return
    steps = offsets.numpy()
    if steps[0] != 0:
        raise ShapeError(f"{what} must start at 0, got {steps[0]}")
    falls = np.flatnonzero(steps[1:] < steps[:-1])
    if falls.size:
        at = int(falls[0])
        raise ShapeError(
            f"{what} must not fall, but offset {at + 1} is {steps[at + 1]} after {steps[at]}"
        )
    if steps[-1] > num_ids:
        raise ShapeError(f"{what} go up to {steps[-1]}, but there are only {num_ids} ids")
    if closed and steps[-1] != num_ids:
        raise ShapeError(
            f"{what} must end at the number of ids, {num_ids}, with include_last_offset; "
            f"the last is {steps[-1]}"
        )
