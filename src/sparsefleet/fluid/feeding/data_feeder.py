"""Convert batches of samples into feeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sparsefleet.fluid.feeding.feed_columns import column_of_samples
from sparsefleet.fluid.framework import default_main_program
from sparsefleet.fluid.framework.lod_tensor import LoDTensor
from sparsefleet.fluid.framework.places import (
    CUDAPlace,
    Place,
    cpu_places,
    cuda_places,
    places_of,
)
from sparsefleet.fluid.framework.variable import Variable
from sparsefleet.fluid.paddle.reader import ResumableReader, batch, map_readers
from sparsefleet.fluid.paddle.reader.resumable import ReaderFunction

__all__ = ["DataFeeder", "feed_variables"]

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
