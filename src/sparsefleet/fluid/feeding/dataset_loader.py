"""Loads batches of a Dataset for a Python loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from sparsefleet.data import ReaderStats
from sparsefleet.fluid.framework.lod_tensor import LoDTensor
from sparsefleet.fluid.framework.places import Place, places_of

__all__ = ["DatasetLoader", "FileDataset"]


class FileDataset(Protocol):
    """The part of a Dataset that its loader uses. Iterating it is one pass.

    A feed is name -> array [B, *shape], or (values [N, 1], offsets int64[B + 1]).
    """

    @property
    def filelist(self) -> Sequence[str]: ...

    @property
    def batch_size(self) -> int: ...

    def set_thread(self, thread_num: int) -> None: ...

    def __iter__(self) -> Iterator[Mapping[str, Any]]: ...

    def stats(self) -> ReaderStats: ...

    def state_dict(self) -> dict[str, Any]: ...

    def finished_state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class DatasetLoader:
    """Feeds of a Dataset, each a dict name -> LoDTensor; with several places, a list of them.

    The dataset reads ahead with one thread per place.

    drop_last: drop short batches, and a last group of fewer batches than places.
    """

    def __init__(
        self, dataset: FileDataset, places: Place | Sequence[Place], drop_last: bool = True
    ) -> None:
        self._places = places_of(places)
        if len(dataset.filelist) < len(self._places):
            raise AssertionError(
                f"the dataset has {len(dataset.filelist)} files for {len(self._places)} places: "
                "expected at least one each"
            )
        dataset.set_thread(len(self._places))
        self._dataset = dataset
        self._drop_last = drop_last

    def __call__(self) -> DatasetLoader:
        """Return itself: Fluid programs write `for batch in loader()`."""
        return self

    def __iter__(self) -> Iterator[Any]:
        """Iterate over one pass of the dataset."""
        batches = self._batches()
        while group := list(islice(batches, len(self._places))):
            if len(group) < len(self._places) and self._drop_last:
                return
            feeds = [
                _tensors_of(batch, place) for batch, place in zip(group, self._places, strict=False)
            ]
            yield feeds if len(self._places) > 1 else feeds[0]

    def stats(self) -> ReaderStats:
        """Return the reading statistics of the dataset."""
        return self._dataset.stats()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the last pass; see the dataset's method."""
        return self._dataset.state_dict()

    def finished_state_dict(self) -> dict[str, Any]:
        """Return `state_dict`, except that at the end of a pass resuming yields no more batches."""
        return self._dataset.finished_state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the next pass where `state` was taken."""
        self._dataset.load_state_dict(state)

    def _batches(self) -> Iterator[Mapping[str, Any]]:
        for batch in self._dataset:
            if not self._drop_last or _num_records(batch) == self._dataset.batch_size:
                yield batch


def _num_records(batch: Mapping[str, Any]) -> int:
    column = next(iter(batch.values()))
    return len(column[1]) - 1 if isinstance(column, tuple) else len(column)


def _tensors_of(batch: Mapping[str, Any], place: Place) -> dict[str, LoDTensor]:
    tensors = {}
    for name, column in batch.items():
        values, lod = (column[0], [column[1]]) if isinstance(column, tuple) else (column, [])
        tensor = LoDTensor(lod=lod)
        tensor.set(values, place, zero_copy=True)
        tensors[name] = tensor
    return tensors
