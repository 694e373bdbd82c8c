"""Ids to look up in a table, and objects that hold the ids of several features.

Objects with several features look like TorchRec's KeyedJaggedTensor and are recognized by their
methods, so TorchRec itself is not needed.

In shapes, N is the number of ids in all lookups, U the number of distinct ids, D the row width, K
the number of keys (features), and B the number of examples.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.errors import ShapeError
from sparsefleet.store.arrays import Keys
from sparsefleet.store.store import Unknown

__all__ = [
    "KeyedJagged",
    "check_keyed_jagged",
    "check_lengths",
    "is_keyed_jagged",
    "values_by_key",
    "weights_of",
]


Inverse = NDArray[np.uint32]
Address = tuple[str, int]

_KEY_MASK = 2**64 - 1


class Lookup:
    """Ids to look up in one table: int64 or int32 of any shape, on the CPU.

    Ids equal to ``padding_idx`` have no row; they read as zeros and get no gradient. Any other
    negative id is an ordinary key, reinterpreted as uint64. The caller has validated the ids
    with `check_ids`.

    >>> Lookup("ads", 8, torch.tensor([[3, 4], [4, 0]]), padding_idx=0)
    Lookup('ads', 8, ids of shape (2, 2))
    """

    __slots__ = ("dim", "given", "ids", "padding_idx", "table", "unknown", "version")

    def __init__(
        self,
        table: str,
        dim: int,
        ids: torch.Tensor,
        *,
        padding_idx: int | None = None,
        unknown: Unknown = "zeros",
    ) -> None:
        self.table = table
        self.dim = dim
        self.given = ids
        """The ids as they were passed, which identify the lookup."""
        self.ids = ids if ids.dtype is torch.int64 else ids.long()
        self.padding_idx = padding_idx
        self.unknown: Unknown = unknown
        # Inference tensors have no version counter, but nothing modifies their ids between pull and
        # lookup.
        self.version = -1 if ids.is_inference() else ids._version

    def address(self) -> Address:
        """Return a key that is the same for lookups of the same ids in the same memory."""
        return self.table, self.given.data_ptr()

    def matches(self, other: Lookup) -> bool:
        """Return whether `other`, which has the same address, looks up the same unchanged ids."""
        mine, theirs = self.given, other.given
        return (
            self.version == other.version
            and mine.dtype is theirs.dtype
            and self.padding_idx == other.padding_idx
            and (
                mine is theirs or (mine.shape == theirs.shape and mine.stride() == theirs.stride())
            )
        )

    def __repr__(self) -> str:
        return f"Lookup({self.table!r}, {self.dim}, ids of shape {tuple(self.ids.shape)})"


ID_DTYPES = (torch.int64, torch.int32)
"""The allowed types of ids, the same as for `torch.nn.Embedding`."""


def check_ids(table: str, ids: object) -> None:
    """Raise an error unless ``ids`` is an int64 or int32 tensor on the CPU."""
    if isinstance(ids, torch.Tensor) and ids.dtype in ID_DTYPES and ids.is_cpu:
        return
    what = f"table '{table}': ids must be an int64 or int32 tensor on the CPU"
    if not isinstance(ids, torch.Tensor):
        raise ShapeError(f"{what}, got {type(ids).__name__}; convert it with torch.as_tensor")
    if ids.dtype not in ID_DTYPES:
        hint = "; convert them with .long()"
        if ids.is_floating_point():
            hint = "; read ids as integers, because floats cannot hold every id"
        raise ShapeError(f"{what}, got {ids.dtype}{hint}")
    raise ShapeError(f"{what}, got a tensor on {ids.device}; move it with .cpu()")


class TableKeys(NamedTuple):
    """The distinct keys in a table's lookups, and the position of each looked-up id among them."""

    keys: Keys
    """uint64[U], each key once."""
    inverse: Inverse
    """uint32[N], the index of each id in ``keys``, or ``_core.PADDING_PLACE`` for padding."""
    sizes: list[int]
    """The number of ids in each lookup."""


def distinct_keys(tables: Sequence[Sequence[Lookup]]) -> list[TableKeys]:
    """Return the distinct keys of each table's lookups, with one native call for all tables."""
    given, sizes = [], []
    for lookups in tables:
        # NumPy rather than torch: every torch operator releases the GIL and must reacquire it.
        flat = [lookup.ids.numpy().reshape(-1) for lookup in lookups]
        given.append(([np.ascontiguousarray(ids) for ids in flat], _padding(lookups, flat)))
        sizes.append([len(ids) for ids in flat])
    keys, counts, inverse = _core.unique_of_tables(given)
    found = []
    first_key = first_id = 0
    for count, of_table in zip(counts, sizes, strict=True):
        end_key, end_id = first_key + count, first_id + sum(of_table)
        found.append(TableKeys(keys[first_key:end_key], inverse[first_id:end_id], of_table))
        first_key, first_id = end_key, end_id
    return found


def _padding(lookups: Sequence[Lookup], flat: Sequence[NDArray[Any]]) -> list[tuple[int, int, int]]:
    """Return the begin, end and padding key of each lookup that has padding."""
    padding = []
    end = 0
    for lookup, ids in zip(lookups, flat, strict=True):
        begin, end = end, end + len(ids)
        if lookup.padding_idx is not None:
            padding.append((begin, end, lookup.padding_idx & _KEY_MASK))
    return padding


def check_offsets(table: str, offsets: torch.Tensor, num_ids: int, *, closed: bool) -> None:
    """Raise an error unless ``offsets`` split ``num_ids`` ids into bags.

    Offsets start at 0, never decrease and stay within the ids; with ``closed``, the last offset
    must equal the number of ids.
    """
    what = f"table '{table}': offsets"
    if not isinstance(offsets, torch.Tensor) or offsets.dtype not in ID_DTYPES:
        found = getattr(offsets, "dtype", type(offsets).__name__)
        raise ShapeError(
            f"{what} must be an int64 or int32 tensor, got {found}; convert with .long()"
        )
    if offsets.dim() != 1 or not offsets.is_cpu:
        raise ShapeError(
            f"{what} must be one-dimensional and on the CPU, got shape "
            f"{tuple(offsets.shape)} on {offsets.device}"
        )
    if offsets.numel() == 0:
        if closed:
            raise ShapeError(f"{what} are empty; expected at least one with include_last_offset")
        if num_ids:
            raise ShapeError(f"{what} are empty, but {num_ids} ids need a bag")
        return
    steps = offsets.numpy()
    if steps[0] != 0:
        raise ShapeError(f"{what} must start at 0, got {steps[0]}")
    falls = np.flatnonzero(steps[1:] < steps[:-1])
    if falls.size:
        at = int(falls[0])
        raise ShapeError(
            f"{what} must not decrease, but offset {at + 1} is {steps[at + 1]} after {steps[at]}"
        )
    if steps[-1] > num_ids:
        raise ShapeError(f"{what} reach {steps[-1]}, but there are only {num_ids} ids")
    if closed and steps[-1] != num_ids:
        raise ShapeError(
            f"{what} must end at the number of ids, {num_ids}, with include_last_offset; "
            f"the last offset is {steps[-1]}"
        )


def check_lengths(lengths: NDArray[np.int64], num_ids: int) -> None:
    """Raise ShapeError unless the lengths of all bags are >= 0 and add up to the number of ids."""
    total = int(lengths.sum())
    if total != num_ids or (len(lengths) and lengths.min() < 0):
        raise ShapeError(
            f"the feature lengths sum to {total} (smallest: "
            f"{lengths.min() if len(lengths) else 0}), but there are {num_ids} ids; expected "
            "lengths >= 0 that sum to the number of ids"
        )


class KeyedJagged(Protocol):
    """The ids of K features for B examples each, feature by feature."""

    def keys(self) -> Sequence[str]:
        """Return the K feature names."""

    def values(self) -> torch.Tensor:
        """Return the ids of all bags: int64[N]."""

    def offsets(self) -> torch.Tensor:
        """Return where each bag starts, feature by feature, and N at the end: int64[K * B + 1]."""


def is_keyed_jagged(value: Any) -> TypeGuard[KeyedJagged]:
    """Return whether ``value`` has the methods of a KeyedJaggedTensor; a dict does not.

    >>> is_keyed_jagged({"ads": 1}), is_keyed_jagged(torch.tensor([1]))
    (False, False)
    """
    return not isinstance(value, (torch.Tensor, Mapping)) and all(
        callable(getattr(value, name, None)) for name in ("keys", "values", "offsets")
    )


def check_keyed_jagged(table: str, ids: KeyedJagged) -> int:
    """Return B. Raises ShapeError if the offsets do not give the same B for every key."""
    has_own = getattr(ids, "variable_stride_per_key", None)
    if callable(has_own) and has_own():
        raise ShapeError(
            f"table '{table}': the keyed jagged tensor has batches of different sizes, expected "
            "the same number of bags for each key; use torchrec_like.EmbeddingBagCollection"
        )
    num_keys, num_offsets = len(ids.keys()), ids.offsets().numel()
    if num_keys == 0 or num_offsets < 1 or (num_offsets - 1) % num_keys:
        raise ShapeError(
            f"table '{table}': a keyed jagged tensor with {num_keys} keys has {num_offsets} "
            "offsets, expected K * B + 1 for K keys and B examples"
        )
    return (num_offsets - 1) // num_keys


def values_by_key(ids: KeyedJagged) -> list[torch.Tensor]:
    """Return the ids of each key as views of the values."""
    views = getattr(ids, "values_per_key", None)
    if callable(views):  # our class caches them
        return views()  # type: ignore[no-any-return]
    num_keys = len(ids.keys())
    starts = getattr(ids, "offset_per_key", None)
    if callable(starts):  # TorchRec's class keeps them as numbers
        ends: list[int] = starts()
    else:
        offsets = ids.offsets()
        ends = offsets[:: max((len(offsets) - 1) // max(num_keys, 1), 1)].tolist()
    values = ids.values()
    return [values[begin:end] for begin, end in itertools.pairwise(ends[: num_keys + 1])]


def weights_of(ids: KeyedJagged) -> torch.Tensor | None:
    """Return the weight of each id, float32[N], or None if the object has no weights."""
    read = getattr(ids, "weights_or_none", None)
    weights: torch.Tensor | None = read() if callable(read) else None
    return weights
