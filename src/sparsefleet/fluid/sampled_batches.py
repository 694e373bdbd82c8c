"""Batches of a dataset that gives samples by number, in an order drawn for each pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

from sparsefleet.reader import ResumableReader
from sparsefleet.reader.checks import check_count

__all__ = ["BatchSampling", "SampledBatches", "WorkerSettings"]


class BatchSampling:
    """Which samples make a batch.

    batch_sampler: gives lists of numbers, the same in each pass that is to go on; None draws them.
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
        """The numbers of the samples of each batch."""
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
    """Processes of torch's loader that get the samples."""

    num_workers: int = 0
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None


class SampledBatches(ResumableReader):
    """Goes on at the batch: samples before it are not asked for again."""

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
