"""The base class for all Datasets: variables, files, commands, threads, and passes over the data.

In shapes, B is the number of records in a batch, N the number of values of a slot in the batch.
"""

from __future__ import annotations

import logging
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from sparsefleet.data import (
    MemoryData,
    MultiSlot,
    Reader,
    ReaderConfig,
    ReaderStats,
    RecordFormat,
    Slot,
)
from sparsefleet.data.file_list import WorkerFiles
from sparsefleet.data.record_source import Arrangement, TakenColumn
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.framework.dtypes import dtype_name

__all__ = [
    "DataFeedDesc",
    "DatasetBase",
    "DatasetBatches",
    "FeedArrangement",
    "HadoopFiles",
    "StreamedBatches",
    "slot_of",
]


_SLOT_DTYPES = {"float32": "float", "int64": "uint64"}


def slot_of(variable: Any) -> Slot:
    """Return the slot of a Variable, or of any object with name, shape, dtype and lod_level.

    A variable with lod_level 0 is a dense slot, with the variable's shape after the batch
    dimension; any other variable is a sparse slot.

    >>> from sparsefleet import fluid
    >>> slot_of(fluid.data("dense", [None, 13], "float32"))
    Slot(name='dense', dtype='float', shape=(13,))
    >>> slot_of(fluid.data("ads", [None, 1], "int64", lod_level=1))
    Slot(name='ads', dtype='uint64', shape=None)
    """
    if isinstance(variable, Slot):
        return variable
    try:
        name, shape, lod_level = variable.name, tuple(variable.shape), variable.lod_level
        dtype = _SLOT_DTYPES.get(dtype_name(variable.dtype))
    except (AttributeError, TypeError) as error:
        raise ConfigError(f"set_use_var takes variables, got {variable!r}: {error}") from error
    if dtype is None:
        raise ConfigError(
            f"variable '{name}': dtype must be float32 or int64, as in files, got "
            f"{variable.dtype!r}; declare it as one of these, and cast it in the network"
        )
    if lod_level > 0:
        return Slot(name, dtype)  # type: ignore[arg-type]
    if not shape or shape[0] not in (-1, None) or any(size in (-1, None) for size in shape[1:]):
        raise ConfigError(
            f"variable '{name}': the shape of a dense slot must begin with -1, for the batch, and "
            f"all other sizes must be known, got {list(shape)}; if the number of values varies, "
            "use lod_level=1"
        )
    return Slot(name, dtype, shape[1:])  # type: ignore[arg-type]


@dataclass(kw_only=True, slots=True)
class DataFeedDesc:
    """The configuration of the readers, as Fluid's DataFeedDesc.

    >>> desc = DataFeedDesc(name="MultiSlotDataFeed")
    >>> print(desc.text([Slot("ads")]))
    name: "MultiSlotDataFeed"
    batch_size: 32
    multi_slot_desc {
      slots {
        name: "ads"
        type: "uint64"
        is_dense: false
        is_used: true
      }
    }
    pipe_command: "cat"
    thread_num: 1
    """

    name: str
    batch_size: int = 32
    pipe_command: str = "cat"
    thread_num: int = 1
    rank_offset: str | None = None
    pv_batch_size: int | None = None

    def text(self, slots: Sequence[Slot]) -> str:
        """Return the configuration in protobuf's text format. `slots` must be in file order."""
        lines = [f"name: {_quoted(self.name)}", f"batch_size: {self.batch_size}"]
        if slots:
            lines += ["multi_slot_desc {", *(line for slot in slots for line in _slot(slot)), "}"]
        lines += [f"pipe_command: {_quoted(self.pipe_command)}", f"thread_num: {self.thread_num}"]
        if self.rank_offset is not None:
            lines.append(f"rank_offset: {_quoted(self.rank_offset)}")
        if self.pv_batch_size is not None:
            lines.append(f"pv_batch_size: {self.pv_batch_size}")
        return "\n".join(lines)


def _slot(slot: Slot) -> list[str]:
    fields = [
        f"name: {_quoted(slot.name)}",
        f"type: {_quoted(slot.dtype)}",
        f"is_dense: {'false' if slot.shape is None else 'true'}",
        "is_used: true",
    ]
    if slot.shape is not None:
        fields += [f"shape: {size}" for size in (-1, *slot.shape)]
    return ["  slots {", *(f"    {field}" for field in fields), "  }"]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


_PREFIXES = ("hdfs:", "afs:")


@dataclass(kw_only=True, slots=True)
class HadoopFiles:
    """Fetches files with hdfs: or afs: paths; other files are opened directly.

    >>> HadoopFiles(fs_name="hdfs://a:54310", fs_ugi="me,secret").command("hdfs:/part.gz")[-2:]
    ['-text', 'hdfs:/part.gz']
    >>> HadoopFiles(download_cmd="fetch -q").command("afs:/my part")
    "fetch -q 'afs:/my part'"
    """

    fs_name: str | None = None
    fs_ugi: str | None = None
    download_cmd: str = ""

    def command(self, path: str) -> Sequence[str] | str | None:
        """Return the command that prints the decompressed file, or None if no command is needed."""
        if not path.startswith(_PREFIXES):
            return None
        if self.download_cmd:
            return f"{self.download_cmd} {shlex.quote(path)}"
        home = os.environ.get("HADOOP_HOME")
        words = ["hadoop" if home is None else os.path.join(home, "bin", "hadoop"), "fs"]
        if self.fs_name is not None:
            words += ["-D", f"fs.default.name={self.fs_name}"]
        if self.fs_ugi is not None:
            words += ["-D", f"hadoop.job.ugi={self.fs_ugi}"]
        return [*words, "-text" if path.endswith(".gz") else "-cat", path]


_log = logging.getLogger("sparsefleet.data")

_QUEUED_BATCHES = 100  # per reading thread, as in Fluid


class DatasetBase(ABC):
    """A Fluid Dataset over the readers of `sparsefleet.data`; created by DatasetFactory."""

    feed_name: str
    """Fluid's name for the reader."""

    def __init__(self) -> None:
        self._desc = DataFeedDesc(name=self.feed_name)
        self._slots: list[Slot] = []
        self._files: WorkerFiles | None = None
        self._hadoop = HadoopFiles()
        self._bad_lines = ReaderConfig()
        self._may_shuffle_slots = False

    # -- configuration ------------------------------------------------------------------------

    def set_use_var(self, var_list: Iterable[Any]) -> None:
        """Declare the slots of a line, in file order; subsequent calls add more."""
        self._slots += [slot_of(variable) for variable in var_list]
        self._changed()

    def set_pipe_command(self, pipe_command: str) -> None:
        """Set a shell command that reads each file on stdin and prints MultiSlot lines.

        The default is "cat", for which no process is started.
        """
        if not isinstance(pipe_command, str) or not pipe_command.strip():
            raise ConfigError(f"pipe_command must be a shell command, got {pipe_command!r}")
        self._desc.pipe_command = pipe_command
        self._changed()

    def set_batch_size(self, batch_size: int) -> None:
        """Set the number of records per batch; 32 by default."""
        self._desc.batch_size = batch_size
        self._changed()

    def set_thread(self, thread_num: int) -> None:
        """Set the number of reading threads; 1 by default."""
        self._desc.thread_num = thread_num
        self._changed()

    def set_filelist(self, filelist: Sequence[str]) -> None:
        """Set this worker's files, as local, fsspec, hdfs: or afs: paths.

        If the list is empty, for example because there are more workers than files, a pass is
        empty.
        """
        if isinstance(filelist, (str, os.PathLike)):
            raise ConfigError(
                f"filelist must be a list of paths, got {filelist!r}; put it in a list"
            )
        self._files = WorkerFiles(os.fspath(path) for path in filelist)
        if not self._files:
            _log.warning("the list of files is empty, so this worker has no records to read")
        self._changed()

    def set_hdfs_config(self, fs_name: str, fs_ugi: str) -> None:
        """Configure hdfs: and afs: files, which are read with `hadoop fs`."""
        self._hadoop = replace(self._hadoop, fs_name=fs_name, fs_ugi=fs_ugi)
        self._changed()

    def set_download_cmd(self, download_cmd: str) -> None:
        """Set a shell command to use instead of `hadoop fs -cat`; the path is appended."""
        self._hadoop = replace(self._hadoop, download_cmd=download_cmd)
        self._changed()

    def set_max_bad_lines(
        self, max_bad_lines: int, quarantine: str | os.PathLike[str] | None = None
    ) -> None:
        """Set how many malformed lines a pass may skip and where to log them; see ReaderConfig."""
        self._bad_lines = ReaderConfig(max_bad_lines=max_bad_lines, quarantine=quarantine)
        self._changed()

    def set_rank_offset(self, rank_offset: str) -> None:
        """Store the value for `desc()`; only Fluid's ad-ranking reader uses it."""
        self._desc.rank_offset = rank_offset

    def set_pv_batch_size(self, pv_batch_size: int) -> None:
        """Store the value for `desc()`; only Fluid's ad-ranking reader uses it."""
        self._desc.pv_batch_size = pv_batch_size

    def set_fea_eval(self, record_candidate_size: int, fea_eval: bool = True) -> None:
        """Allow `slots_shuffle`.

        `record_candidate_size` is ignored, since all records take part.
        """
        del record_candidate_size
        self._may_shuffle_slots = bool(fea_eval)

    def slots_shuffle(self, slots: Iterable[str]) -> None:
        """Shuffle the values of slots among the records in memory."""
        raise ConfigError(
            f"{type(self).__name__} has no records in memory, so it cannot shuffle {list(slots)}; "
            "use InMemoryDataset"
        )

    def desc(self) -> str:
        """Return the configuration in protobuf's text format."""
        return self._desc.text(self._all_slots())

    @property
    def filelist(self) -> list[str]:
        """Return the list of files."""
        return list(self._files or ())

    @property
    def batch_size(self) -> int:
        """Return the number of records per batch."""
        return self._desc.batch_size

    @property
    def thread_num(self) -> int:
        """Return the number of reading threads."""
        return self._desc.thread_num

    # -- batches ------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the feeds of one pass; see `feeds`."""
        return iter(self.feeds())

    def feeds(self) -> DatasetBatches:
        """Return an iterable over feeds, in the form that an Executor takes.

        Each iteration is one pass. A feed maps each slot's name to an array [B, *shape] or, for
        sparse slots, to (values [N, 1], offsets int64[B + 1]). B is the batch size, N the number
        of values.
        """

        def arrange() -> Arrangement:
            columns = self._columns()
            config = ReaderConfig(include_last_offset=True)
            return FeedArrangement(columns, None, config, left_out=_texts(columns))

        return self._batches(arrange)

    def batches(
        self,
        label: str | None = None,
        *,
        layout: Literal["dict", "tuple"] = "dict",
        include_last_offset: bool = False,
    ) -> DatasetBatches:
        """Return batches for a Trainer: pairs (inputs, label), or only inputs if there is no label.

        layout, include_last_offset: see ReaderConfig.
        """
        config = ReaderConfig(layout=layout, include_last_offset=include_last_offset)

        def arrange() -> Arrangement:
            columns = self._columns()
            return Arrangement(columns, label, config, left_out=_texts(columns))

        arrange()  # report a wrong name here
        return self._batches(arrange)

    @abstractmethod
    def source(self) -> Reader | MemoryData:
        """Return the current source of batches. Raises an error if there is none yet."""

    def stats(self) -> ReaderStats:
        """Return the counts of files, lines, bytes, records, bad lines and waits so far."""
        return self.source().stats()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the current pass."""
        return self.source().state_dict()

    def finished_state_dict(self) -> dict[str, Any]:
        """Like `state_dict`, but resuming from the end of a pass yields no batches."""
        return self.source().finished_state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass resume from the position at which `state` was taken."""
        self.source().load_state_dict(state)

    # -- internals ----------------------------------------------------------------------------

    def _batches(self, arrange: Callable[[], Arrangement]) -> DatasetBatches:
        return DatasetBatches(self, arrange)

    def _text_slots(self) -> list[Slot]:
        """Return the slots for the strings, such as ids, at the start of each line."""
        return []

    def _all_slots(self) -> tuple[Slot, ...]:
        return (*self._text_slots(), *self._slots)

    def _columns(self) -> tuple[Slot, ...]:
        """Return the slots of the columns in a batch."""
        return self._all_slots()

    def _format(self) -> RecordFormat:
        return MultiSlot(*self._all_slots())

    @abstractmethod
    def _changed(self) -> None:
        """Discard the readers; the next pass creates new ones."""

    def _make_reader(self, threads: int) -> Reader:
        if not self._slots:
            raise ConfigError("no variables are declared; call set_use_var first")
        if self._files is None:
            raise ConfigError("no files are listed; call set_filelist first")
        command = self._desc.pipe_command
        config = replace(
            self._bad_lines,
            queue_batches=_QUEUED_BATCHES * threads,
            shell_command=None if command.strip() == "cat" else command,
            download=self._hadoop.command,
        )
        return Reader(
            self._files, self._format(), self._desc.batch_size, threads=threads, config=config
        )


def _texts(columns: tuple[Slot, ...]) -> list[str]:
    return [slot.name for slot in columns if slot.dtype == "text"]


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
