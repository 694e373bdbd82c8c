"""Datasets that stream their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from sparsefleet.data import MultiSlotBinary, Reader, ReaderConfig, RecordFormat, merge_states
from sparsefleet.data.exchange import Workers
from sparsefleet.fluid.dataset_base import DatasetBase
from sparsefleet.fluid.dataset_batches import StreamedBatches

__all__ = ["FileInstantDataset", "QueueDataset"]


class QueueDataset(DatasetBase):
    """Streams its files, once in each pass; nothing is shuffled or left out.

    Threads are at most one for a file. A batch has records of one thread, so there are up to as
    many short batches as threads. With one thread batches come in the order of the files.

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
        """The reader of the files, made at first use."""
        if self._reader is None:
            self._reader = self._make_reader(max(1, self._desc.thread_num))
        return self._reader

    def load_state_dicts(self, states: Iterable[Mapping[str, Any]]) -> None:
        """As `load_state_dict`, from all workers of an earlier run, however many there were.

        What they have read of the files of this worker counts; other files are for others.
        """
        mine = set(self.source().files)
        merged = merge_states(states)
        merged["done"] = [path for path in merged["done"] if path in mine]
        merged["records"] = {path: at for path, at in merged["records"].items() if path in mine}
        self.load_state_dict(merged)

    def local_shuffle(self) -> NoReturn:
        """Not for data that streams."""
        self._refuse("local_shuffle")

    def global_shuffle(self, fleet: Workers | None = None) -> NoReturn:
        """Not for data that streams."""
        del fleet
        self._refuse("global_shuffle")

    def _refuse(self, call: str) -> NoReturn:
        raise NotImplementedError(
            f"{type(self).__name__} streams its files and has no {call}: use InMemoryDataset"
        )

    def _batches(self, label: str | None, config: ReaderConfig) -> StreamedBatches:
        return StreamedBatches(self, label, config)

    def _changed(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class FileInstantDataset(QueueDataset):
    """As QueueDataset, of binary files: see `sparsefleet.data.MultiSlotBinary`."""

    feed_name = "MultiSlotFileInstantDataFeed"

    def _format(self) -> RecordFormat:
        return MultiSlotBinary(*self._all_slots())
