"""Convert batches of samples into feeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.framework import default_main_program
from sparsefleet.fluid.framework.lod_tensor import LoDTensor
from sparsefleet.fluid.framework.places import (
    CUDAPlace,
    Place,
    cpu_places,
    cuda_places,
    places_of,
)
from sparsefleet.fluid.framework.variable import Variable, check_feed
from sparsefleet.fluid.paddle.reader import ResumableReader, batch, map_readers
from sparsefleet.fluid.paddle.reader.resumable import ReaderFunction

__all__ = ["DataFeeder", "column_of_samples", "columns_of_batch", "feed_variables"]


def column_of_samples(variable: Variable, fields: Sequence[Any]) -> LoDTensor:
    """Return one variable's values from all samples in a batch.

    With lod_level 0, the values are stacked, cast, and reshaped if the number of axes differs.
    With lod_level k, each value is a nested list of depth k whose lengths become the LoD. As when
    reading files, ids up to 2^64 - 1 become int64 with the same bits; values that do not fit an
    integer type are rejected.

    >>> ads = Variable("ads", [-1, 1], "int64", lod_level=1)
    >>> column = column_of_samples(ads, [[17, 18], [99]])
    >>> column.shape(), column.lod()
    ([3, 1], [[0, 2, 3]])
    """
    lengths: list[list[int]] = []
    rows: Sequence[Any] | NDArray[Any] = list(fields)
    for level in range(variable.lod_level):
        try:
            lengths.append([len(part) for part in rows])
        except TypeError as error:
            raise TypeError(
                f"variable '{variable.name}' has lod_level {variable.lod_level}, so each sample "
                f"must be a nested list of that depth; at depth {level}: {error}"
            ) from error
        rows = _joined(rows)
    array = _reshaped(variable, _stacked(variable, rows))
    check_feed(variable, array.shape, array.dtype)
    column = LoDTensor(torch.from_numpy(array))
    column.set_recursive_sequence_lengths(lengths)
    return column


def columns_of_batch(variables: Sequence[Variable], arrays: Any) -> list[LoDTensor]:
    """Convert a batch of one array or LoDTensor per variable, keeping types and shapes.

    LoDTensors are passed through. Other arrays are copied, since their owner may overwrite them.
    """
    if not isinstance(arrays, (list, tuple)) or len(arrays) != len(variables):
        found = f"{len(arrays)} of them" if isinstance(arrays, (list, tuple)) else "no list"
        names = ", ".join(variable.name for variable in variables)
        raise ConfigError(
            f"a batch generator must yield a list of {len(variables)} arrays ({names}), got a "
            f"{type(arrays).__name__}, {found}"
        )
    return list(map(_column_of_batch, variables, arrays))


def _column_of_batch(variable: Variable, value: Any) -> LoDTensor:
    if isinstance(value, LoDTensor):
        column = value
    else:
        if isinstance(value, np.ndarray) and _are_long_ids(variable, value):
            value = value.view(np.int64)
        column = LoDTensor()
        try:
            column.set(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"cannot feed '{variable.name}': {_uneven(error)}") from error
    check_feed(variable, column.shape(), column.tensor.dtype)
    return column


def _joined(parts: Sequence[Any] | NDArray[Any]) -> Sequence[Any] | NDArray[Any]:
    """Return the items of all parts, concatenated."""
    if len(parts) and all(isinstance(part, np.ndarray) for part in parts):
        joined: NDArray[Any] = np.concatenate(list(parts))
        return joined
    return [item for part in parts for item in part]


def _stacked(variable: Variable, rows: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    try:
        found = np.array(rows)
        if np.dtype(variable.dtype).kind in "iu":
            return _integers(variable, rows, found)
        return found.astype(variable.dtype, copy=False)
    except (TypeError, ValueError, OverflowError) as error:
        if _is_uneven(rows):
            raise TypeError(f"cannot feed '{variable.name}': {_uneven(error)}") from error
        raise ValueError(
            f"values fed to '{variable.name}' cannot be converted to {variable.dtype}: {error}"
        ) from error


def _integers(
    variable: Variable, rows: Sequence[Any] | NDArray[Any], found: NDArray[Any]
) -> NDArray[Any]:
    """Convert rows to integers.

    found: `rows` as converted by NumPy, which yields floats if the ints span 2^63.
    """
    if found.dtype == variable.dtype or found.dtype.kind in "SU":
        return found.astype(variable.dtype, copy=False)
    if _are_long_ids(variable, found):
        return found.view(np.int64)
    if found.dtype.kind != "O":
        with np.errstate(invalid="ignore", over="ignore"):
            cast: NDArray[Any] = found.astype(variable.dtype)
        if (cast == found).all():
            return cast
    exact = [_whole(item) for item in np.array(rows, dtype=object).ravel()]
    if variable.dtype == "int64":
        exact = [item - 2**64 if 2**63 <= item < 2**64 else item for item in exact]
    return np.array(exact, dtype=variable.dtype).reshape(found.shape)


def _whole(item: Any) -> int:
    number = int(item)
    if number != item:
        raise ValueError(f"{item!r} is not a whole number and would be truncated")
    return number


def _are_long_ids(variable: Variable, found: NDArray[Any]) -> bool:
    return variable.dtype == "int64" and found.dtype == np.uint64


def _is_uneven(rows: Sequence[Any] | NDArray[Any]) -> bool:
    try:
        found = np.array(rows)
        return any(isinstance(item, (list, tuple, np.ndarray)) for item in found.ravel()[:1])
    except ValueError:
        return True


def _uneven(error: BaseException) -> str:
    return (
        f"sequences of different lengths cannot form an array ({error}); pass LoD tensors "
        "(fluid.create_lod_tensor), or use a variable with lod_level > 0"
    )


def _reshaped(variable: Variable, array: NDArray[Any]) -> NDArray[Any]:
    """Reshape the array to the declared shape if the number of axes differs and enough sizes are
    known.
    """
    if array.ndim == len(variable.shape) or variable.shape.count(-1) > 1:
        return array
    try:
        return array.reshape(variable.shape)
    except ValueError as error:
        raise ValueError(
            f"fed to '{variable.name}': got shape {array.shape}, which cannot be converted to "
            f"{variable.shape}"
        ) from error


Feed = dict[str, LoDTensor]


class DataFeeder:
    """Converts a batch of samples into a dict of tensors, one field per variable.

    feed_list: variables, or their names in `program`, in the order of a sample's fields.
    place: device of the tensors.

    >>> from sparsefleet import fluid
    >>> label = fluid.data("label", [None, 1], "int64")
    >>> ads = fluid.data("ads", [None, 1], "int64", lod_level=1)
    >>> feeder = DataFeeder([ads, label], fluid.CPUPlace())
    >>> feed = feeder.feed([([17, 18], 1), ([99], 0)])
    >>> feed["ads"].lod(), feed["label"].numpy().tolist()
    ([[0, 2, 3]], [[1], [0]])
    """

    def __init__(
        self, feed_list: Sequence[Variable | str], place: Place, program: Any = None
    ) -> None:
        self.feed_vars = feed_variables(feed_list, program or default_main_program())
        self.feed_names = [variable.name for variable in self.feed_vars]
        (self.place,) = places_of(place)

    def feed(self, iterable: Iterable[Sequence[Any]]) -> Feed:
        """Return a dict from variable name to tensor for the samples of one batch."""
        return self._feed_to(iterable, self.place)

    def feed_parallel(
        self, iterable: Iterable[Iterable[Sequence[Any]]], num_places: int | None = None
    ) -> Iterator[Feed]:
        """Return one dict per device, each from one batch; see `decorate_reader` for num_places."""
        batches = list(iterable)
        places = self._places(num_places)
        if len(batches) != len(places):
            raise ValueError(
                f"feed_parallel: got {len(batches)} batches for {len(places)} places, expected one "
                "per place"
            )
        for samples, place in zip(batches, places, strict=True):
            yield self._feed_to(samples, place)

    def decorate_reader(
        self,
        reader: ReaderFunction,
        multi_devices: bool,
        num_places: int | None = None,
        drop_last: bool = True,
    ) -> ResumableReader:
        """Return a reader that yields dicts or, with `multi_devices`, lists with one dict per
        place.

        num_places: None means the number of GPUs, or CPU_NUM if there are none.
        drop_last: drop the last group if it has fewer batches than places; otherwise a short group
            is an error.
        """
        if not multi_devices:
            return map_readers(self.feed, reader)
        num = len(self._places(num_places))

        def feed_group(group: list[Any]) -> list[Feed]:
            if len(group) < num:
                raise ValueError(
                    f"decorate_reader: the last group has {len(group)} of {num} batches; set "
                    "drop_last=True to drop it"
                )
            return list(self.feed_parallel(group, num))

        return map_readers(feed_group, batch(reader, num, drop_last))

    def _feed_to(self, samples: Iterable[Sequence[Any]], place: Place) -> Feed:
        rows = [_fields_of(sample, self.feed_vars) for sample in samples]
        return {
            variable.name: column_of_samples(variable, [row[index] for row in rows]).to_place(place)
            for index, variable in enumerate(self.feed_vars)
        }

    def _places(self, num_places: int | None) -> Sequence[Place]:
        if isinstance(self.place, CUDAPlace):
            return cuda_places(None if num_places is None else range(num_places))
        return cpu_places(num_places) if self.place.is_cpu else [self.place] * (num_places or 1)


def feed_variables(feed_list: Sequence[Variable | str], program: Any = None) -> list[Variable]:
    """Return the variables in `feed_list`, which may be objects or names in `program`.

    Raises TypeError for anything else.
    """
    found = []
    for item in feed_list:
        if isinstance(item, str) and program is not None:
            item = program.global_block().var(item)
        if not isinstance(item, Variable):
            raise TypeError(
                "feed_list must contain variables, or names of variables in a program, got "
                f"{item!r}"
            )
        found.append(item)
    return found


def _fields_of(sample: Sequence[Any], variables: list[Variable]) -> Sequence[Any]:
    if len(sample) != len(variables):
        raise AssertionError(
            f"a sample has {len(sample)} fields, expected {len(variables)}: "
            f"{', '.join(variable.name for variable in variables)}"
        )
    return sample
