"""The door to all loaders, and the one of datasets that give samples by number."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.data_feeder import feed_variables
from sparsefleet.fluid.dataset_loader import DatasetLoader, FileDataset
from sparsefleet.fluid.feed_columns import column_of_samples, columns_of_batch
from sparsefleet.fluid.feed_pass import Columns
from sparsefleet.fluid.generator_loader import GeneratorLoader
from sparsefleet.fluid.loader import Loader
from sparsefleet.fluid.lod_tensor import LoDTensor
from sparsefleet.fluid.places import CPUPlace, Place, places_of
from sparsefleet.fluid.sampled_batches import BatchSampling, SampledBatches, WorkerSettings
from sparsefleet.fluid.variable import Variable
from sparsefleet.reader.background import WAIT_S

__all__ = ["DataLoader"]

_READ_AHEAD = 2  # batches; those of worker processes come on top


class DataLoader(Loader):
    """Batches of a dataset with `__getitem__` and `__len__`; also makes the other loaders.

    feed_list: the variables that a sample's fields are for; needed unless `return_list`.
    batch_sampler: gives lists of sample numbers, in the place of batch_size, shuffle, drop_last.
    collate_fn: makes a list of arrays, one a variable, of a list of samples.
    num_workers: processes that get samples, those of torch's own loader.
    use_buffer_reader: keep one more batch ready, on a GPU already there.
    timeout: seconds that a worker process may take for a batch; 0: no limit but ten minutes.

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
        use_shared_memory: bool = True,  # noqa: ARG002  workers of torch always do
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
    ) -> None:
        if not feed_list and not return_list:
            raise ConfigError("DataLoader needs feed_list to name tensors, or return_list=True")
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
        """Batches of a pass; with several places, groups of them."""
        whole, rest = divmod(len(self._sampling), len(self._places))
        return whole + (rest > 0 and not self._drop_last)

    def __call__(self) -> DataLoader:
        """Itself: Fluid programs write `for batch in loader()`."""
        return self

    def __iter__(self) -> Iterator[Any]:
        """Begins a pass; one that is under way ends."""
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
        """A loader of batches from a Python generator; arguments as of `GeneratorLoader`.

        use_multiprocess: of Fluid's imperative mode only; `reader.multiprocess_reader` reads in
            processes.
        """
        if use_multiprocess:
            warnings.warn(
                "use_multiprocess=True is for Fluid's imperative mode and does nothing here; "
                "sparsefleet.reader.multiprocess_reader reads in processes of their own",
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
        """A loader over a Dataset of `fluid.DatasetFactory`; see `DatasetLoader`."""
        return DatasetLoader(dataset, places, drop_last)


def _collate(
    variables: list[Variable] | None,
    collate_fn: Callable[[list[Any]], Any] | None,
    samples: list[Any],
) -> Columns:
    """Runs in the worker processes, where there are some."""
    if collate_fn is not None:
        arrays = collate_fn(samples)
        if variables is not None:
            return columns_of_batch(variables, arrays)
        return [LoDTensor(torch.as_tensor(np.asarray(array))) for array in arrays]
    fields = list(zip(*samples, strict=True))
    if variables is not None:
        return list(map(column_of_samples, variables, fields))
    return [LoDTensor(torch.from_numpy(np.stack(field))) for field in fields]
