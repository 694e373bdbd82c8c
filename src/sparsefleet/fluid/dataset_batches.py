"""Passes over a Dataset: as feeds of Fluid, or as batches for a Trainer.

Letters: B records of a batch, N values of a slot in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from sparsefleet.data import Arrangement, MemoryData, Reader, ReaderConfig, ReaderStats
from sparsefleet.data.record_source import TakenColumn

__all__ = ["DatasetBatches", "FeedArrangement", "StreamedBatches"]


class FeedArrangement(Arrangement):
    """Feeds: a dense slot [B, *shape]; a sparse one (values [N, 1], offsets int64[B + 1])."""

    def arrange(self, taken: list[TakenColumn], num_records: int) -> dict[str, Any]:
        columns: dict[str, Any] = super().arrange(taken, num_records)
        return {
            name: (column[0].reshape(-1, 1), column[1]) if isinstance(column, tuple) else column
            for name, column in columns.items()
        }


class HasSource(Protocol):
    """A Dataset, to its batches."""

    def source(self) -> Reader | MemoryData:
        """Where batches come from now; raises if there is nothing yet."""

    def arrangement(self, label: str | None, config: ReaderConfig) -> Arrangement: ...


class HasFiles(HasSource, Protocol):
    """A Dataset that streams, to its batches."""

    def source(self) -> Reader: ...

    def load_state_dicts(self, states: Iterable[Mapping[str, Any]]) -> None: ...


class DatasetBatches:
    """What `Trainer.fit`, `evaluate` and `predict` take; made by `dataset.batches()`.

    Each time it is iterated is one pass over the dataset, as it is then.
    """

    def __init__(self, dataset: HasSource, label: str | None, config: ReaderConfig) -> None:
        self._dataset = dataset
        self._label = label
        self._config = config

    def __iter__(self) -> Iterator[Any]:
        source = self._dataset.source()
        return source.begin(self._dataset.arrangement(self._label, self._config))

    def __len__(self) -> int:
        """Batches of a pass, where the records are in memory; TypeError where they are not."""
        source = self._dataset.source()
        if isinstance(source, Reader):
            raise TypeError("files do not tell how many batches are in them")
        return len(source)

    def stats(self) -> ReaderStats:
        """What was read so far, for the trainer's summary."""
        return self._dataset.source().stats()

    def state_dict(self) -> dict[str, Any]:
        """How far the last pass has come; see `Reader.state_dict` and `MemoryData.state_dict`."""
        return self._dataset.source().state_dict()

    def finished_state_dict(self) -> dict[str, Any]:
        """As `state_dict`, also at the end of the pass: going on there gives nothing."""
        return self._dataset.source().finished_state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass goes on where `state` was taken."""
        self._dataset.source().load_state_dict(state)


class StreamedBatches(DatasetBatches):
    """The same of files: these can be dealt anew to another number of workers."""

    def __init__(self, dataset: HasFiles, label: str | None, config: ReaderConfig) -> None:
        super().__init__(dataset, label, config)
        self._files = dataset

    @property
    def own_files(self) -> list[str] | None:
        """As `Reader.own_files`."""
        return self._files.source().own_files

    @property
    def keeps_order(self) -> bool:
        """As `Reader.keeps_order`."""
        return self._files.source().keeps_order

    def load_state_dicts(self, states: Iterable[Mapping[str, Any]]) -> None:
        """As `load_state_dict`, from all workers of an earlier run; see the dataset's."""
        self._files.load_state_dicts(states)
