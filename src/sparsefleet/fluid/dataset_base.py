"""What all Datasets have: variables, files, commands, threads."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from sparsefleet.data import (
    Arrangement,
    MemoryData,
    MultiSlot,
    Reader,
    ReaderConfig,
    ReaderStats,
    RecordFormat,
    Slot,
)
from sparsefleet.data.file_list import WorkerFiles
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.data_feed_desc import DataFeedDesc
from sparsefleet.fluid.dataset_batches import DatasetBatches, FeedArrangement
from sparsefleet.fluid.dataset_slots import slot_of
from sparsefleet.fluid.hadoop_files import HadoopFiles

__all__ = ["DatasetBase"]

_log = logging.getLogger("sparsefleet.data")

_QUEUED_BATCHES = 100  # of each reading thread: Fluid's


class DatasetBase(ABC):
    """A Dataset of Fluid over the readers of `sparsefleet.data`; made by DatasetFactory."""

    feed_name: str
    """What Fluid calls the reader."""

    def __init__(self) -> None:
        self._desc = DataFeedDesc(name=self.feed_name)
        self._slots: list[Slot] = []
        self._files: WorkerFiles | None = None
        self._hadoop = HadoopFiles()
        self._bad_lines = ReaderConfig()
        self._may_shuffle_slots = False

    # -- configuration ------------------------------------------------------------------------

    def set_use_var(self, var_list: Iterable[Any]) -> None:
        """Declares the slots of a line, in the order of the files; called again, adds more."""
        self._slots += [slot_of(variable) for variable in var_list]
        self._changed()

    def set_pipe_command(self, pipe_command: str) -> None:
        """A text for the shell: gets each file on its standard input and prints MultiSlot lines.

        By default "cat", for which no process is started.
        """
        if not isinstance(pipe_command, str) or not pipe_command.strip():
            raise ConfigError(f"pipe_command must be a text for the shell, got {pipe_command!r}")
        self._desc.pipe_command = pipe_command
        self._changed()

    def set_batch_size(self, batch_size: int) -> None:
        """Records of a batch; 32 by default."""
        self._desc.batch_size = batch_size
        self._changed()

    def set_thread(self, thread_num: int) -> None:
        """Reading threads; 1 by default."""
        self._desc.thread_num = thread_num
        self._changed()

    def set_filelist(self, filelist: Sequence[str]) -> None:
        """The files of this worker: local ones, of fsspec, or with hdfs: or afs: in front.

        Without any, as where there are more workers than files, a pass is empty.
        """
        if isinstance(filelist, (str, os.PathLike)):
            raise ConfigError(f"filelist must be a list of paths, got {filelist!r}: put it in one")
        self._files = WorkerFiles(os.fspath(path) for path in filelist)
        if not self._files:
            _log.warning("the list of files is empty: this worker has no records of its own")
        self._changed()

    def set_hdfs_config(self, fs_name: str, fs_ugi: str) -> None:
        """For files of hdfs: and afs:, which are read through `hadoop fs`."""
        self._hadoop = replace(self._hadoop, fs_name=fs_name, fs_ugi=fs_ugi)
        self._changed()

    def set_download_cmd(self, download_cmd: str) -> None:
        """A text for the shell in the place of `hadoop fs -cat`; the path is put behind it."""
        self._hadoop = replace(self._hadoop, download_cmd=download_cmd)
        self._changed()

    def set_max_bad_lines(
        self, max_bad_lines: int, quarantine: str | os.PathLike[str] | None = None
    ) -> None:
        """Malformed lines of a pass that are skipped, and a file for them; see ReaderConfig."""
        self._bad_lines = ReaderConfig(max_bad_lines=max_bad_lines, quarantine=quarantine)
        self._changed()

    def set_rank_offset(self, rank_offset: str) -> None:
        """Kept in `desc()`: only the ad-ranking reader of Fluid's box uses it."""
        self._desc.rank_offset = rank_offset

    def set_pv_batch_size(self, pv_batch_size: int) -> None:
        """Kept in `desc()`: only the ad-ranking reader of Fluid's box uses it."""
        self._desc.pv_batch_size = pv_batch_size

    def set_fea_eval(self, record_candidate_size: int, fea_eval: bool = True) -> None:
        """Allows `slots_shuffle`. All records are candidates, whatever the size."""
        del record_candidate_size
        self._may_shuffle_slots = bool(fea_eval)

    def slots_shuffle(self, slots: Iterable[str]) -> None:
        """Gives the values of slots to other records, where they are in memory."""
        raise ConfigError(
            f"{type(self).__name__} has no records in memory to shuffle {list(slots)} of: use "
            "InMemoryDataset"
        )

    def desc(self) -> str:
        """The configuration in protobuf's text form."""
        return self._desc.text(self._all_slots())

    @property
    def filelist(self) -> list[str]:
        """The files as they were set."""
        return list(self._files or ())

    @property
    def batch_size(self) -> int:
        """Records of a batch."""
        return self._desc.batch_size

    @property
    def thread_num(self) -> int:
        """Reading threads."""
        return self._desc.thread_num

    # -- batches ------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """One pass as feeds: name -> array [B, *shape] or (values [N, 1], offsets int64[B + 1])."""
        config = ReaderConfig(include_last_offset=True)
        columns = self._columns()
        arrangement = FeedArrangement(columns, None, config, left_out=_texts(columns))
        return self.source().begin(arrangement)

    def batches(
        self,
        label: str | None = None,
        *,
        layout: Literal["dict", "tuple"] = "dict",
        include_last_offset: bool = False,
    ) -> DatasetBatches:
        """What a Trainer takes: batches (inputs, label), or inputs alone without a label.

        layout, include_last_offset: see ReaderConfig.
        """
        config = ReaderConfig(layout=layout, include_last_offset=include_last_offset)
        self.arrangement(label, config)  # so that a wrong name is told here
        return self._batches(label, config)

    def arrangement(self, label: str | None, config: ReaderConfig) -> Arrangement:
        """How columns become batches for a Trainer."""
        columns = self._columns()
        return Arrangement(columns, label, config, left_out=_texts(columns))

    @abstractmethod
    def source(self) -> Reader | MemoryData:
        """Where batches come from now; raises if there is nothing yet."""

    def stats(self) -> ReaderStats:
        """Files, lines, bytes, records, bad lines and waits so far."""
        return self.source().stats()

    def state_dict(self) -> dict[str, Any]:
        """How far the last pass has come."""
        return self.source().state_dict()

    def finished_state_dict(self) -> dict[str, Any]:
        """As `state_dict`, also at the end of the pass: going on there gives nothing."""
        return self.source().finished_state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass goes on where `state` was taken."""
        self.source().load_state_dict(state)

    # -- inside -------------------------------------------------------------------------------

    def _batches(self, label: str | None, config: ReaderConfig) -> DatasetBatches:
        return DatasetBatches(self, label, config)

    def _text_slots(self) -> list[Slot]:
        """Texts that lines begin with."""
        return []

    def _all_slots(self) -> tuple[Slot, ...]:
        return (*self._text_slots(), *self._slots)

    def _columns(self) -> tuple[Slot, ...]:
        """Of the source."""
        return self._all_slots()

    def _format(self) -> RecordFormat:
        return MultiSlot(*self._all_slots())

    @abstractmethod
    def _changed(self) -> None:
        """Readers are to be made anew."""

    def _make_reader(self, threads: int) -> Reader:
        if not self._slots:
            raise ConfigError("no variables are declared: call set_use_var first")
        if self._files is None:
            raise ConfigError("there is no list of files: call set_filelist first")
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
