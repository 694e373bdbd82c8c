"""Fluid's Datasets, which read files natively, either streaming or into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from sparsefleet.data import MultiSlotBinary, Reader, RecordFormat, merge_states
from sparsefleet.data.global_shuffle import Workers
from sparsefleet.data.record_source import Arrangement
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.feeding.dataset_base import DatasetBase, StreamedBatches
from sparsefleet.fluid.feeding.in_memory_dataset import InMemoryDataset

__all__ = ["DatasetFactory", "FileInstantDataset", "InMemoryDataset", "QueueDataset"]


class QueueDataset(DatasetBase):
    """Streams its files once per pass, without shuffling or dropping records.

    There is at most one thread per file. A batch holds one thread's records, so up to one batch per
    thread may be short. With one thread, batches come in the order of the files.

    >>> import pathlib, tempfile
    >>> from sparsefleet import fluid
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "part-0"
    >>> size = path.write_text("3 0 0 7 1 1\\n1 5 1 0\\n")
    >>> dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
    >>> dataset.set_use_var(
    ...     [
    ...         fluid.data("ads", [None, 1], "int64", lod_level=1),
    ...         fluid.data("click", [None, 1], "int64"),
    ...     ]
    ... )
    >>> dataset.set_filelist([str(path)])
    >>> for feed in dataset:
    ...     values, offsets = feed["ads"]
    ...     print(values[:, 0], offsets, feed["click"][:, 0])
    [0 0 7 5] [0 3 4] [1 0]
    """

    feed_name = "MultiSlotDataFeed"

    def __init__(self) -> None:
        super().__init__()
        self._reader: Reader | None = None

    def source(self) -> Reader:
        """Return the reader of the files, which is created on first use."""
        if self._reader is None:
            self._reader = self._make_reader(max(1, self._desc.thread_num))
        return self._reader

    def load_state_dicts(self, states: Iterable[Mapping[str, Any]]) -> None:
        """Resume from the states of all workers in an earlier run, which may have had a different
        number of workers.

        Only the positions in this worker's files matter; other files belong to other workers.
        """
        mine = set(self.source().files)
        merged = merge_states(states)
        merged["done"] = [path for path in merged["done"] if path in mine]
        merged["records"] = {path: at for path, at in merged["records"].items() if path in mine}
        self.load_state_dict(merged)

    def local_shuffle(self) -> NoReturn:
        """Raise an error, because streamed data is not in memory."""
        self._refuse("local_shuffle")

    def global_shuffle(self, fleet: Workers | None = None) -> NoReturn:
        """Raise an error, because streamed data is not in memory."""
        del fleet
        self._refuse("global_shuffle")

    def _refuse(self, call: str) -> NoReturn:
        raise NotImplementedError(
            f"{type(self).__name__} streams its files and has no {call}; use InMemoryDataset"
        )

    def _batches(self, arrange: Callable[[], Arrangement]) -> StreamedBatches:
        return StreamedBatches(self, arrange)

    def _changed(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class FileInstantDataset(QueueDataset):
    """A QueueDataset over binary files; see `sparsefleet.data.MultiSlotBinary`."""

    feed_name = "MultiSlotFileInstantDataFeed"

    def _format(self) -> RecordFormat:
        return MultiSlotBinary(*self._all_slots())


class DatasetFactory:
    """Creates Datasets by name.

    >>> from sparsefleet import fluid
    >>> dataset = DatasetFactory().create_dataset("InMemoryDataset")
    >>> dataset.set_use_var([fluid.data("ads", [None, 1], "int64", lod_level=1)])
    """

    def create_dataset(self, datafeed_class: str = "QueueDataset") -> Any:
        """Create a "QueueDataset", "InMemoryDataset" or "FileInstantDataset"."""
        kinds = (QueueDataset, InMemoryDataset, FileInstantDataset)
        for kind in kinds:
            if kind.__name__ == datafeed_class:
                return kind()
        raise ConfigError(
            f"datafeed_class must be one of {', '.join(kind.__name__ for kind in kinds)}, got "
            f"{datafeed_class!r}"
        )
