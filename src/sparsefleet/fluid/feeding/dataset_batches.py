"""Passes over a Dataset, as Fluid feeds or as batches for a Trainer.

In shapes, B is the number of records in a batch, N the number of values of a slot in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from sparsefleet.data import MemoryData, Reader, ReaderStats
from sparsefleet.data.record_source import Arrangement, TakenColumn

__all__ = ["DatasetBatches", "FeedArrangement", "StreamedBatches"]


class FeedArrangement(Arrangement):
    """Arranges feeds: dense slots as [B, *shape], sparse slots as (values [N, 1], offsets int64[B
    + 1]).
    """

    def arrange(self, taken: list[TakenColumn], num_records: int) -> dict[str, Any]:
        columns: dict[str, Any] = super().arrange(taken, num_records)
        return {
            name: (column[0].reshape(-1, 1), column[1]) if isinstance(column, tuple) else column
            for name, column in columns.items()
        }


class HasSource(Protocol):
    """The part of a Dataset's interface that batches use."""

    def source(self) -> Reader | MemoryData:
        """Return the current source of batches. Raises an error if there is none yet."""


class HasFiles(HasSource, Protocol):
    """The part of a streaming Dataset's interface that batches use."""

    def source(self) -> Reader: ...

    def load_state_dicts(self, states: Iterable[Mapping[str, Any]]) -> None: ...


class DatasetBatches:
    """A Dataset's batches, for the engine's passes; each iteration is one pass.

    arrange: returns the arrangement of columns in a batch; called when a pass starts.
    """

    def __init__(self, dataset: HasSource, arrange: Callable[[], Arrangement]) -> None:
        self._dataset = dataset
        self._arrange = arrange

    def __iter__(self) -> Iterator[Any]:
        return self._dataset.source().begin(self._arrange())

    def __len__(self) -> int:
        """Return the number of batches in a pass. Raises TypeError for streamed records."""
        source = self._dataset.source()
        if isinstance(source, Reader):
            raise TypeError("the number of batches in a file is unknown before the file is read")
        return len(source)

    def stats(self) -> ReaderStats:
        """Return the reading statistics, for the trainer's summary."""
        return self._dataset.source().stats()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the current pass; see `Reader.state_dict`."""
        return self._dataset.source().state_dict()

    def finished_state_dict(self) -> dict[str, Any]:
        """Like `state_dict`, but resuming from the end of a pass yields no batches."""
        return self._dataset.source().finished_state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass resume from the position at which `state` was taken."""
        self._dataset.source().load_state_dict(state)


class StreamedBatches(DatasetBatches):
    """Batches from files, which can be redistributed over a different number of workers."""

    def __init__(self, dataset: HasFiles, arrange: Callable[[], Arrangement]) -> None:
        super().__init__(dataset, arrange)
        self._files = dataset

    @property
    def own_files(self) -> list[str] | None:
        """Return the reader's `own_files`; see `Reader.own_files`."""
        return self._files.source().own_files

    @property
    def keeps_order(self) -> bool:
        """Return the reader's `keeps_order`; see `Reader.keeps_order`."""
        return self._files.source().keeps_order

    @property
    def record_files(self) -> list[str] | None:
        """Return the reader's `record_files`; see `Reader.record_files`."""
        return self._files.source().record_files

    def load_state_dicts(self, states: Iterable[Mapping[str, Any]]) -> None:
        """Resume from the states of all workers in an earlier run.

        See `QueueDataset.load_state_dicts`.
        """
        self._files.load_state_dicts(states)

    def of_worker(self, rank: int, files: Sequence[str] | None) -> StreamedBatches | None:
        """Return batches from a different worker's files; see `Reader.of_worker`."""
        reader = self._files.source().of_worker(rank, files)
        return None if reader is None else StreamedBatches(_OtherFiles(reader), self._arrange)


class _OtherFiles:
    """Provides a reader of other files in place of the Dataset's own."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def source(self) -> Reader:
        return self._reader

    def load_state_dicts(self, states: Iterable[Mapping[str, Any]]) -> None:
        self._reader.load_state_dicts(states)
