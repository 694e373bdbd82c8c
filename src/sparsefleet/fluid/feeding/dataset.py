"""Fluid's Datasets, which read files natively, either streaming or into memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from sparsefleet.data import MemoryData, MultiSlotBinary, Reader, RecordFormat, Slot, merge_states
from sparsefleet.data.global_shuffle import Workers
from sparsefleet.data.record_source import Arrangement
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.feeding.dataset_base import DatasetBase, StreamedBatches

__all__ = ["DatasetFactory", "FileInstantDataset", "InMemoryDataset", "Preload", "QueueDataset"]


_INS_ID = "ins_id"


class InMemoryDataset(DatasetBase):
    """Loads files into memory for any number of passes; shuffles locally or over all workers.

    Zeros in sparse slots are dropped; a record with no values left gets a single 0. With several
    threads or queues, the records are split into that many contiguous blocks. Batches come from the
    blocks in turn, and each block may end with a short batch. The order stays the same until the
    records are shuffled again.
    """

    feed_name = "MultiSlotInMemoryDataFeed"

    def __init__(self) -> None:
        super().__init__()
        self._data: MemoryData | None = None
        self._preload: Preload | None = None
        self._texts: dict[str, bool] = {_INS_ID: False, "content": False, "logkey": False}
        self._queue_num: int | None = None
        self._send_batch_size = 1024
        self._send_sleep_s = 0.0
        self._merge_size: int | None = None
        self._loaded = 0
        self._shuffled = False

    # -- configuration ------------------------------------------------------------------------

    def set_feed_type(self, data_feed_type: str) -> None:
        """Set the native reader class; only "MultiSlotInMemoryDataFeed" is available."""
        if data_feed_type != self.feed_name:
            raise ConfigError(f"data_feed_type must be {self.feed_name!r}, got {data_feed_type!r}")

    def set_queue_num(self, queue_num: int) -> None:
        """Set how many blocks the records are split into. Default and maximum: one per thread."""
        self._queue_num = queue_num

    def set_parse_ins_id(self, parse_ins_id: bool) -> None:
        """Expect lines to start with `1 id`, where id is a string; records can be merged by id."""
        self._texts[_INS_ID] = bool(parse_ins_id)

    def set_parse_content(self, parse_content: bool) -> None:
        """Expect `1 content`, where content is a string, next in each line."""
        self._texts["content"] = bool(parse_content)

    @property
    def parse_ins_id(self) -> bool:
        return self._texts[_INS_ID]

    @property
    def parse_content(self) -> bool:
        return self._texts["content"]

    @property
    def dataset(self) -> InMemoryDataset:
        """Return this Dataset, since programs call methods of Fluid's native object through it."""
        return self

    def merge_by_lineid(self) -> None:
        """Merge records in memory that have equal ids, as configured with `set_merge_by_lineid`."""
        if self._merge_size is None:
            raise ConfigError("merge_by_lineid is not configured; call set_merge_by_lineid first")
        self._loaded_data().merge_by_text(_INS_ID, self._merge_size)

    def set_generate_unique_feasigns(self, generate_uni_feasigns: bool, shard_num: int) -> None:
        """Accept a setting for pslib's local tables.

        It has no effect: each batch pulls the rows it needs.
        """
        del generate_uni_feasigns, shard_num

    def generate_local_tables_unlock(
        self,
        table_id: int,
        fea_dim: int,
        read_thread_num: int,
        consume_thread_num: int,
        shard_num: int,
    ) -> None:
        """Do nothing: no local table is needed, since each batch pulls the rows it needs."""
        del table_id, fea_dim, read_thread_num, consume_thread_num, shard_num

    def set_parse_logkey(self, parse_logkey: bool) -> None:
        """Expect `1 logkey`, where logkey is a string, next in each line."""
        self._texts["logkey"] = bool(parse_logkey)

    def set_merge_by_lineid(self, merge_size: int = 2) -> None:
        """Make `global_shuffle` merge records with equal ids; implies set_parse_ins_id.

        Groups whose size is not `merge_size` are dropped with a warning; see
        `MemoryData.merge_by_text`.
        """
        self._merge_size = merge_size
        self.set_parse_ins_id(True)

    def set_fleet_send_batch_size(self, fleet_send_batch_size: int = 1024) -> None:
        """Set how many records `global_shuffle` sends at once."""
        self._send_batch_size = fleet_send_batch_size

    def set_fleet_send_sleep_seconds(self, fleet_send_sleep_seconds: float = 0) -> None:
        """Set how many seconds `global_shuffle` pauses after each batch of records it sends."""
        self._send_sleep_s = fleet_send_sleep_seconds

    # -- loading and shuffling ----------------------------------------------------------------

    def load_into_memory(self) -> None:
        """Read all files; return when they are in memory."""
        self._check_not_loading()
        self._take(self._load(self._desc.thread_num))

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Start reading all files in the background; `wait_preload_done` must follow."""
        self._check_not_loading()
        threads = self._desc.thread_num if thread_num is None else thread_num
        self._preload = Preload(lambda: self._load(threads))

    def wait_preload_done(self) -> None:
        """Return when everything is in memory; raise any error from loading."""
        preload, self._preload = self._preload, None
        if preload is None:
            raise ConfigError("call preload_into_memory() before wait_preload_done()")
        self._take(preload.result())

    def release_memory(self) -> None:
        """Free all records."""
        self._data = None
        self._loaded = 0
        self._shuffled = False

    def local_shuffle(self, seed: int | None = None) -> None:
        """Shuffle this worker's records, if any."""
        self._check_not_loading()
        if self._data is not None:
            self._data.local_shuffle(seed)
            self._shuffled = True

    def global_shuffle(
        self, fleet: Workers | None = None, thread_num: int = 12, *, seed: int | None = None
    ) -> None:
        """Redistribute the records over all workers, and shuffle them on each worker.

        Must be called by all workers. Without a fleet, this process is the only worker.
        `thread_num` has no effect, since one thread sends while another receives. See
        `MemoryData.global_shuffle`.
        """
        del thread_num
        data = self._loaded_data()
        by = None if self._merge_size is None else _INS_ID
        if fleet is not None:
            data.global_shuffle(
                fleet,
                seed=seed,
                by=by,
                block_records=self._send_batch_size,
                pause_s=self._send_sleep_s,
            )
        if self._merge_size is not None:
            data.merge_by_text(_INS_ID, self._merge_size)
        if fleet is None or self._merge_size is not None:
            data.local_shuffle(seed)
        self._shuffled = True

    def slots_shuffle(self, slots: Iterable[str]) -> None:
        """Shuffle the values of these slots among records; an empty list undoes the shuffle."""
        if not self._may_shuffle_slots:
            raise ConfigError("slots_shuffle is for evaluation; call set_fea_eval(n, True) first")
        self._loaded_data().shuffle_slots(list(slots))

    # -- sizes --------------------------------------------------------------------------------

    def get_memory_data_size(self, fleet: Workers | None = None) -> int:
        """Return the number of loaded records.

        With a fleet, this is the total over all workers; all workers must call this method.
        """
        self._check_not_loading()
        return _sum_over(fleet, self._loaded)

    def get_shuffle_data_size(self, fleet: Workers | None = None) -> int:
        """Return the number of records after a shuffle, or 0 before the first shuffle.

        With a fleet, this is the total over all workers.
        """
        self._check_not_loading()
        held = self._data.num_records if self._data is not None and self._shuffled else 0
        return _sum_over(fleet, held)

    # -- internals ----------------------------------------------------------------------------

    def source(self) -> MemoryData:
        """Return the records in memory, in batches of the current size."""
        data = self._loaded_data()
        if not isinstance(self._desc.batch_size, int) or self._desc.batch_size < 1:
            raise ConfigError(f"batch_size must be an int >= 1, got {self._desc.batch_size!r}")
        data.batch_size = self._desc.batch_size
        data.num_blocks = self._num_queues()
        return data

    def _loaded_data(self) -> MemoryData:
        self._check_not_loading()
        if self._data is None:
            raise ConfigError("there are no records in memory; call load_into_memory() first")
        return self._data

    def _check_not_loading(self) -> None:
        if self._preload is not None:
            raise ConfigError("records are being loaded; call wait_preload_done() first")

    def _load(self, threads: int) -> MemoryData:
        self._num_queues()  # so that a wrong number is reported before the files are read
        return MemoryData(self._make_reader(max(1, threads)), drop_zeros=True)

    def _num_queues(self) -> int:
        threads = max(1, self._desc.thread_num)
        queues = threads if self._queue_num is None else self._queue_num
        if not 1 <= queues <= threads:
            raise ConfigError(
                f"queue_num must be in 1..{threads}, the number of threads, got {queues}"
            )
        return queues

    def _take(self, data: MemoryData) -> None:
        self._data = data
        self._loaded = data.num_records
        self._shuffled = False

    def _text_slots(self) -> list[Slot]:
        return [Slot(name, "text") for name, is_there in self._texts.items() if is_there]

    def _columns(self) -> tuple[Slot, ...]:
        return self._all_slots() if self._data is None else self._data.columns

    def _changed(self) -> None:
        """Handle changed settings: keep loaded records.

        New files and slots apply to the next load.
        """


def _sum_over(fleet: Workers | None, mine: int) -> int:
    if fleet is None or fleet.worker_num() == 1:
        return mine
    gathered = fleet.all_gather(mine.to_bytes(8, "little"))
    return sum(int.from_bytes(theirs, "little") for theirs in gathered)


class Preload:
    """Loads files into memory in a background thread."""

    def __init__(self, load: Callable[[], MemoryData]) -> None:
        self._load = load
        self._data: MemoryData | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sparsefleet-preload", daemon=True)
        self._thread.start()

    def result(self) -> MemoryData:
        self._thread.join()  # reading has its own timeouts
        if self._error is not None:
            raise self._error
        assert self._data is not None
        return self._data

    def _run(self) -> None:
        try:
            self._data = self._load()
        except BaseException as error:  # thread boundary: raised by `result`
            self._error = error


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
