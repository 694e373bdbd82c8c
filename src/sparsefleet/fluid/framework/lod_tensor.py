"""Tensors that record where their sequences start.

In shapes, N is the number of rows in all sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from sparsefleet.engine.batch_tensors import register_tensor_type
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.framework.call_site import ProgramError
from sparsefleet.fluid.framework.dtypes import dtype_name
from sparsefleet.fluid.framework.places import (
    CPUPlace,
    CUDAPinnedPlace,
    CUDAPlace,
    Place,
    place_tensor,
)

__all__ = [
    "Level",
    "LoDTensor",
    "LoDTensorArray",
    "Tensor",
    "as_lists",
    "create_lod_tensor",
    "create_random_int_lodtensor",
    "is_valid",
    "offsets_of_lengths",
    "offsets_of_lod",
]


class LoDTensor:
    """A torch tensor and, if its rows form sequences, their offsets, level by level.

    >>> ids = LoDTensor()
    >>> ids.set(np.array([[17], [18], [99]]), CPUPlace())
    >>> ids.set_recursive_sequence_lengths([[2, 1]])
    >>> ids.lod(), ids.shape(), np.asarray(ids)[:, 0].tolist()
    ([[0, 2, 3]], [3, 1], [17, 18, 99])
    """

    def __init__(self, tensor: torch.Tensor | None = None, lod: Iterable[ArrayLike] = ()) -> None:
        self._tensor = tensor
        self._lod = offsets_of_lod(lod)

    def set(self, array: Any, place: Place | None = None, zero_copy: bool = False) -> None:
        """Replace the values but keep the LoD.

        zero_copy: share the memory of a NumPy array or torch tensor, where the place allows it.
        """
        tensor = _as_tensor(array)
        placed = place_tensor(tensor, place or CPUPlace())
        shares = placed is tensor and not (isinstance(array, (list, tuple)) or np.isscalar(array))
        self._tensor = placed.clone() if shares and not zero_copy else placed

    def share(self, tensor: torch.Tensor) -> None:
        """Use this tensor as the values, without a copy, but keep the LoD."""
        self._tensor = tensor

    @property
    def tensor(self) -> torch.Tensor:
        """Return the values without a copy."""
        if self._tensor is None:
            raise ConfigError("this LoDTensor is empty; fill it with set(array, place)")
        return self._tensor

    def numpy(self) -> NDArray[Any]:
        """Return the values, sharing memory unless they are on a GPU."""
        array: NDArray[Any] = self.tensor.detach().cpu().numpy()
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(
                    f"a LoDTensor of {array.dtype} cannot be read as {dtype} without a copy"
                )
            return array.astype(dtype)
        return array.copy() if copy else array

    def model_input(self) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the values as torch modules take them, as in a `data.Reader`'s batches.

        Without LoD, the result is the tensor. With one level, the result is (values, offsets
        int64[B]), for `SparseEmbeddingBag`; values are [N] if a row has one value, otherwise [N,
        ...].
        """
        if not self._lod:
            return self.tensor
        if len(self._lod) > 1:
            raise ConfigError(
                f"a LoDTensor with {len(self._lod)} levels of LoD cannot be fed to a torch "
                "module, which takes one level as (values, offsets)"
            )
        values = self.tensor
        if values.dim() == 2 and values.shape[1] == 1:
            values = values.squeeze(1)
        return values, torch.from_numpy(self._lod[0][:-1])

    def to_place(self, place: Place) -> LoDTensor:
        """Return a copy at the place, or this object if it is already there."""
        placed = place_tensor(self.tensor, place)
        return self if placed is self._tensor else LoDTensor(placed, self._lod)

    def offsets(self) -> tuple[Level, ...]:
        """Return `lod` as int64 arrays, without a copy."""
        return self._lod

    def lod(self) -> list[list[int]]:
        """Return the LoD as offsets, outermost level first."""
        return as_lists(self._lod)

    def set_lod(self, lod: Iterable[ArrayLike]) -> None:
        """Set the offsets without checking them against the rows."""
        self._lod = offsets_of_lod(lod)

    def recursive_sequence_lengths(self) -> list[list[int]]:
        """Return the LoD as sequence lengths, outermost level first."""
        return as_lists(np.diff(level) for level in self._lod)

    def set_recursive_sequence_lengths(self, lengths: Iterable[ArrayLike]) -> None:
        """Set the LoD from lengths. Raises ProgramError if levels or rows do not match."""
        lod = offsets_of_lengths(lengths)
        rows = 0 if self._tensor is None or self._tensor.dim() == 0 else len(self._tensor)
        if lod and not is_valid(lod, rows or int(lod[-1][-1])):
            raise ProgramError(
                f"lengths {as_lists(np.diff(level) for level in lod)} do not match a tensor of "
                f"{rows} rows; each level must sum to the length of the next level, and the last "
                "level to the number of rows"
            )
        self._lod = lod

    def has_valid_recursive_sequence_lengths(self) -> bool:
        """Return whether the LoD matches the rows."""
        rows = 0 if self._tensor is None or self._tensor.dim() == 0 else len(self._tensor)
        return is_valid(self._lod, rows)

    @property
    def num_samples(self) -> int:
        """Return the number of outermost sequences or, without LoD, the number of rows."""
        if self._lod:
            return len(self._lod[0]) - 1
        return len(self) if self.shape() else 1

    def shape(self) -> list[int]:
        """Return the shape, which is [0] for an empty tensor."""
        return [0] if self._tensor is None else list(self._tensor.shape)

    def __len__(self) -> int:
        return self.shape()[0]

    def __getitem__(self, index: Any) -> LoDTensor:
        """Return a slice of the values as a LoDTensor without LoD."""
        return LoDTensor(self.tensor[index])

    def __repr__(self) -> str:
        values = "empty" if self._tensor is None else repr(self._tensor)
        return f"LoDTensor({values}, lod={self.lod()})"

    # Names from Fluid's native class that programs call.

    def _get_dims(self) -> list[int]:
        return self.shape()

    def _dtype(self) -> str:
        return dtype_name(self.tensor.dtype)

    def _is_initialized(self) -> bool:
        return self._tensor is not None

    def _get_float_element(self, offset: int) -> float:
        return float(self.tensor.view(-1)[offset])

    def _set_float_element(self, offset: int, value: float) -> None:
        self.tensor.view(-1)[offset] = value

    _get_double_element, _set_double_element = _get_float_element, _set_float_element

    def _place(self) -> Place:
        if self.tensor.device.type == "cuda":
            return CUDAPlace(self.tensor.device.index or 0)
        return CUDAPinnedPlace() if self.tensor.is_pinned() else CPUPlace()


Tensor = LoDTensor  # an alias in Fluid


class LoDTensorArray(list[LoDTensor]):
    """A list of tensors.

    >>> tensors = LoDTensorArray()
    >>> tensors.append(LoDTensor(torch.zeros(2)))
    >>> len(tensors), tensors[0].shape()
    (1, [2])
    """

    def append(self, tensor: Any) -> None:
        """Append a LoDTensor, converting other values."""
        if not isinstance(tensor, LoDTensor):
            value, tensor = tensor, LoDTensor()
            tensor.set(value, CPUPlace())
        super().append(tensor)


def create_lod_tensor(
    data: Any, recursive_seq_lens: Sequence[Sequence[int]], place: Place | None = None
) -> LoDTensor:
    """Create a tensor of sequences from its rows or from one list per sequence.

    data: an array with the rows in order, a LoDTensor, or a list of lists, each a sequence of
        single values, whose lengths must match the last level.

    >>> create_lod_tensor([[1, 2], [3]], [[2, 1]]).shape()
    [3, 1]
    """
    if isinstance(data, LoDTensor):
        data = data.tensor
    elif isinstance(data, list):
        found = [len(sequence) for sequence in data]
        if not recursive_seq_lens or found != list(recursive_seq_lens[-1]):
            raise AssertionError(
                f"data has sequences of {found} values, but recursive_seq_lens has "
                f"{list(recursive_seq_lens)[-1:]}"
            )
        arrays = [np.asarray(sequence) for sequence in data if len(sequence)]  # [] has no dtype
        data = np.concatenate(arrays or [np.empty(0, np.int64)]).reshape(-1, 1)
    elif not isinstance(data, (np.ndarray, torch.Tensor)):
        raise TypeError(f"data must be a LoDTensor, an array or a list, got {type(data).__name__}")
    made = LoDTensor()
    made.set(data, place)
    made.set_lod(offsets_of_lengths(recursive_seq_lens))
    if not made.has_valid_recursive_sequence_lengths():
        raise AssertionError(
            f"recursive_seq_lens {list(recursive_seq_lens)} do not match {len(made)} rows"
        )
    return made


def create_random_int_lodtensor(
    recursive_seq_lens: Sequence[Sequence[int]],
    base_shape: Sequence[int],
    place: Place | None,
    low: int,
    high: int,
) -> LoDTensor:
    """Create random int64 values in low..high, inclusive, with rows of shape `base_shape`.

    >>> create_random_int_lodtensor([[2, 1]], [4], CPUPlace(), low=0, high=9).shape()
    [3, 4]
    """
    shape = [sum(recursive_seq_lens[-1]), *base_shape]
    values = np.random.randint(low, high + 1, shape).astype(np.int64)
    return create_lod_tensor(values, recursive_seq_lens, place)


def _as_tensor(array: Any) -> torch.Tensor:
    """Convert an array, sharing its memory if it is writeable and its strides are positive."""
    if isinstance(array, LoDTensor):
        return array.tensor
    if isinstance(array, torch.Tensor):
        return array
    found = np.asarray(array)
    if found.dtype == object:
        raise TypeError(
            "sequences of different lengths cannot form an array; build a LoDTensor with "
            "fluid.create_lod_tensor, or use a variable with lod_level > 0"
        )
    if not found.flags.writeable or any(stride < 0 for stride in found.strides):
        found = found.copy()
    return torch.from_numpy(found)


register_tensor_type(LoDTensor, LoDTensor.model_input)

Level = NDArray[np.int64]
"""Offsets of one level, which start at 0 and never decrease."""


def offsets_of_lod(lod: Iterable[ArrayLike]) -> tuple[Level, ...]:
    """Return the levels of a LoD given as offsets. Raises ValueError if the offsets are invalid."""
    levels = tuple(np.asarray(level, dtype=np.int64) for level in lod)
    for number, level in enumerate(levels):
        if level.ndim != 1 or not len(level) or level[0] != 0 or (np.diff(level) < 0).any():
            raise ValueError(
                f"LoD, level {number}: offsets must start with 0 and never decrease, got "
                f"{level.tolist()}; to pass lengths, call set_recursive_sequence_lengths"
            )
    return levels


def offsets_of_lengths(lengths: Iterable[ArrayLike]) -> tuple[Level, ...]:
    """Return the levels of a LoD, as offsets, for sequence lengths.

    >>> as_lists(offsets_of_lengths([[2, 1], [2, 2, 3]]))
    [[0, 2, 3], [0, 2, 4, 7]]
    """
    sums = (np.cumsum(np.asarray(level, dtype=np.int64)) for level in lengths)
    return offsets_of_lod(np.concatenate(([0], ends)) for ends in sums)


def is_valid(levels: Sequence[Level], num_rows: int) -> bool:
    """Return whether each level exactly covers the next level, and the last level covers all rows.

    >>> is_valid(offsets_of_lod([[0, 2, 3], [0, 2, 4, 7]]), 7)
    True
    >>> is_valid(offsets_of_lod([[0, 2]]), 3)
    False
    """
    if not levels:
        return True
    nested = all(outer[-1] == len(inner) - 1 for outer, inner in pairwise(levels))
    return nested and int(levels[-1][-1]) == num_rows


def as_lists(levels: Iterable[NDArray[Any]]) -> list[list[int]]:
    """Return the levels as plain lists."""
    return [level.tolist() for level in levels]
