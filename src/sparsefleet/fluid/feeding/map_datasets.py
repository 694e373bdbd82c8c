"""Datasets of indexed samples, and the samplers that form batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.feeding.data_loader import BatchSampling

__all__ = ["BatchSampler", "Dataset", "default_collate_fn"]


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
