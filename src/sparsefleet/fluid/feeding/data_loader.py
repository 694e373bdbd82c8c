"""DataLoader, the entry point to all loaders, and the loader for map-style datasets."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils import data as torch_data

from sparsefleet.data import ReaderStats
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.feeding.data_feeder import (
    column_of_samples,
    columns_of_batch,
    feed_variables,
)
from sparsefleet.fluid.feeding.generator_loader import GeneratorLoader
from sparsefleet.fluid.feeding.loader import Columns, Loader
from sparsefleet.fluid.framework.lod_tensor import LoDTensor
from sparsefleet.fluid.framework.places import CPUPlace, Place, places_of
from sparsefleet.fluid.framework.variable import Variable
from sparsefleet.fluid.paddle.reader import ResumableReader
from sparsefleet.fluid.paddle.reader.background import WAIT_S, check_count

__all__ = [
    "BatchSampler",
    "BatchSampling",
    "DataLoader",
    "Dataset",
    "DatasetLoader",
    "FileDataset",
    "SampledBatches",
    "WorkerSettings",
    "default_collate_fn",
]


class FileDataset(Protocol):
    """The part of a Dataset's interface that its loader uses. Each iteration is one pass.

    A feed maps each slot's name to an array [B, *shape] or, for sparse slots, to (values [N, 1],
    offsets int64[B + 1]). B is the batch size, N the number of values.
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
    """Loads a Dataset's feeds: dicts of name -> LoDTensor or, with several places, lists of dicts.

    The dataset reads ahead with one thread per place.

    drop_last: drop short batches, and the last group if it has fewer batches than places.
    """

    def __init__(
        self, dataset: FileDataset, places: Place | Sequence[Place], drop_last: bool = True
    ) -> None:
        self._places = places_of(places)
        if len(dataset.filelist) < len(self._places):
            raise AssertionError(
                f"the dataset has {len(dataset.filelist)} files for {len(self._places)} places, "
                "expected at least one per place"
            )
        dataset.set_thread(len(self._places))
        self._dataset = dataset
        self._drop_last = drop_last

    def __call__(self) -> DatasetLoader:
        """Return this loader, since Fluid programs write `for batch in loader()`."""
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
        """Return the position in the current pass; see `DatasetBase.state_dict`."""
        return self._dataset.state_dict()

    def finished_state_dict(self) -> dict[str, Any]:
        """Like `state_dict`, but resuming from the end of a pass yields no batches."""
        return self._dataset.finished_state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass resume from the position at which `state` was taken."""
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


_READ_AHEAD = 2  # batches, in addition to those that worker processes prefetch


class DataLoader(Loader):
    """Loads batches from a dataset with `__getitem__` and `__len__`; also creates other loaders.

    feed_list: the variables that a sample's fields fill; required unless return_list is True.
    batch_sampler: yields lists of sample indices; replaces batch_size, shuffle and drop_last.
    collate_fn: converts a list of samples to a list of arrays, one per variable.
    num_workers: processes that fetch samples, run by torch's loader.
    use_buffer_reader: keep one more batch ready, already on the GPU if there is one.
    timeout: how many seconds a worker process may take for a batch; 0 means ten minutes.

    >>> from sparsefleet import fluid
    >>> squares = DataLoader([(n, n * n) for n in range(5)], return_list=True, batch_size=2)
    >>> len(squares), [square.numpy().tolist() for number, square in squares]
    (3, [[0, 1], [4, 9], [16]])
    """

    def __init__(
        self,
        dataset: Any,
        feed_list: Sequence[Variable] | None = None,
        places: Place | Sequence[Place] | None = None,
        return_list: bool = False,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        use_buffer_reader: bool = True,
        use_shared_memory: bool = True,  # noqa: ARG002  torch's workers always do
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
    ) -> None:
        if not feed_list and not return_list:
            raise ConfigError("DataLoader needs feed_list to name its tensors, or return_list=True")
        variables = feed_variables(feed_list) if feed_list else None
        super().__init__(
            None if return_list or variables is None else [v.name for v in variables],
            capacity=_READ_AHEAD,
            double_buffer=use_buffer_reader,
            drop_last=drop_last,
            wait_s=WAIT_S,
            threads=max(1, num_workers),
        )
        self._places = places_of(CPUPlace() if places is None else places)
        self._sampling = BatchSampling(
            len(dataset),
            batch_sampler,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
        )
        workers = WorkerSettings(
            num_workers=num_workers, timeout=timeout, worker_init_fn=worker_init_fn
        )
        collate = partial(_collate, variables, collate_fn)
        self._set_reader(SampledBatches(dataset, self._sampling, collate, workers), list)

    def __len__(self) -> int:
        """Return the number of batches in a pass or, with several places, the number of groups."""
        whole, rest = divmod(len(self._sampling), len(self._places))
        return whole + (rest > 0 and not self._drop_last)

    def __call__(self) -> DataLoader:
        """Return this loader, since Fluid programs write `for batch in loader()`."""
        return self

    def __iter__(self) -> Iterator[Any]:
        """Start a pass, canceling any pass in progress."""
        return map(self._shaped, self._begin(self._places))

    @staticmethod
    def from_generator(
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
        *,
        wait_s: float = WAIT_S,
    ) -> GeneratorLoader:
        """Return a loader over a Python generator; see `GeneratorLoader` for the arguments.

        use_multiprocess: has no effect; to read in processes, use `reader.multiprocess_reader`.
        """
        if use_multiprocess:
            warnings.warn(
                "use_multiprocess=True is for Fluid's imperative mode and has no effect here; "
                "use paddle.reader.multiprocess_reader to read in separate processes",
                stacklevel=2,
            )
        return GeneratorLoader(
            feed_list,
            capacity,
            use_double_buffer,
            iterable,
            return_list,
            drop_last=drop_last,
            wait_s=wait_s,
        )

    @staticmethod
    def from_dataset(
        dataset: FileDataset, places: Place | Sequence[Place], drop_last: bool = True
    ) -> DatasetLoader:
        """Return a loader over a `fluid.DatasetFactory` Dataset; see `DatasetLoader`."""
        return DatasetLoader(dataset, places, drop_last)


def _collate(
    variables: list[Variable] | None,
    collate_fn: Callable[[list[Any]], Any] | None,
    samples: list[Any],
) -> Columns:
    """Collate a batch; runs in the worker processes, if any."""
    if collate_fn is not None:
        arrays = collate_fn(samples)
        if variables is not None:
            return columns_of_batch(variables, arrays)
        return [LoDTensor(torch.as_tensor(np.asarray(array))) for array in arrays]
    fields = list(zip(*samples, strict=True))
    if variables is not None:
        return list(map(column_of_samples, variables, fields))
    return [LoDTensor(torch.from_numpy(np.stack(field))) for field in fields]


class BatchSampling:
    """Chooses the samples in each batch.

    batch_sampler: yields lists of indices; must yield the same lists again in a pass that is
        resumed. If None, indices are drawn at random.
    """

    def __init__(
        self,
        num_samples: int,
        batch_sampler: Iterable[Sequence[int]] | None,
        *,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
    ) -> None:
        self._num_samples = num_samples
        self._batch_sampler = batch_sampler
        self._batch_size = check_count("batch_size", batch_size)
        self._drop_last = drop_last
        # Follows torch.manual_seed, as torch's own loader does.
        self.seed = int(torch.empty((), dtype=torch.int64).random_()) if shuffle else None

    def __len__(self) -> int:
        if self._batch_sampler is not None:
            return len(self._batch_sampler)  # type: ignore[arg-type]
        whole, rest = divmod(self._num_samples, self._batch_size)
        return whole + (rest > 0 and not self._drop_last)

    def lists(self, seed: int | None, pass_number: int) -> Iterator[list[int]]:
        """Yield the sample indices of each batch."""
        if self._batch_sampler is not None:
            yield from map(list, self._batch_sampler)
            return
        order = np.arange(self._num_samples)
        if seed is not None:
            np.random.default_rng([seed, pass_number]).shuffle(order)
        for number in range(len(self)):
            begin = number * self._batch_size
            yield order[begin : begin + self._batch_size].tolist()


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings:
    """Settings for the worker processes of torch's DataLoader."""

    num_workers: int = 0
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None


class SampledBatches(ResumableReader):
    """An iterator over batches that can resume without fetching earlier samples."""

    kind = "dataset"

    def __init__(
        self,
        dataset: Any,
        sampling: BatchSampling,
        collate: Callable[[list[Any]], Any],
        workers: WorkerSettings,
    ) -> None:
        super().__init__()
        self._dataset = dataset
        self._sampling = sampling
        self._collate = collate
        self._workers = workers
        self.seed = sampling.seed

    def walk(self, pass_number: int, position: Any) -> Iterator[tuple[Any, Any]]:
        had = int(position or 0)
        lists = islice(self._sampling.lists(self.seed, pass_number), had, None)
        batches: Iterable[Any] = torch_data.DataLoader(
            self._dataset,
            batch_sampler=lists,
            collate_fn=self._collate,
            num_workers=self._workers.num_workers,
            timeout=self._workers.timeout,
            worker_init_fn=self._workers.worker_init_fn,
        )
        for number, batch in enumerate(batches, had + 1):
            yield batch, number


class Dataset:
    """Base class for datasets with `__getitem__` and `__len__`, for `fluid.io.DataLoader`.

    >>> class Squares(Dataset):
    ...     def __getitem__(self, idx):
    ...         return np.float32(idx), np.float32(idx * idx)
    ...     def __len__(self):
    ...         return 3
    >>> Squares()[2]
    (np.float32(2.0), np.float32(4.0))
    """

    def __getitem__(self, idx: int) -> Any:
        """Return a sample: one array per field."""
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")

    def __len__(self) -> int:
        """Return the number of samples."""
        raise NotImplementedError(f"{type(self).__name__} has no __len__")


class BatchSampler:
    """Yields the sample indices of each batch, taken from a dataset or from given indices.

    >>> list(BatchSampler(indices=[4, 5, 6], batch_size=2))
    [[4, 5], [6]]
    """

    def __init__(
        self,
        dataset: Any = None,
        indices: Sequence[int] | None = None,
        shuffle: bool = False,
        batch_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        if (dataset is None) == (indices is None):
            raise ConfigError("BatchSampler takes either a dataset or indices, not both")
        self._indices = None if indices is None else list(indices)
        self._sampling = BatchSampling(
            len(dataset) if self._indices is None else len(self._indices),
            None,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
        )
        self._passes = 0

    def __iter__(self) -> Iterator[list[int]]:
        self._passes += 1
        for numbers in self._sampling.lists(self._sampling.seed, self._passes):
            yield numbers if self._indices is None else [self._indices[n] for n in numbers]

    def __len__(self) -> int:
        return len(self._sampling)


def default_collate_fn(batch: Sequence[Any]) -> list[Any]:
    """Return the samples' fields, each stacked into one array.

    >>> default_collate_fn([(1, [2.0]), (3, [4.0])])[1].tolist()
    [[2.0], [4.0]]
    """
    return [np.stack([np.asarray(value) for value in field]) for field in zip(*batch, strict=True)]
