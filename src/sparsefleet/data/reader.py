"""Reads files into batches on background threads.

In shapes, B is the number of records in a batch and N the number of values.
"""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparsefleet.data.batch_queue import BatchQueue
from sparsefleet.data.file_list import list_files, split_files
from sparsefleet.data.progress import WHOLE, Progress, Share, merge_states
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.reader_pass import FileCursor, MarkedBatch, PartCursor, Producer, ReaderPass
from sparsefleet.data.reader_stats import ReaderCounts, ReaderStats, ReaderTally
from sparsefleet.data.record_source import (
    Arrangement,
    BadLines,
    BatchMaker,
    RecordFormat,
    RecordSource,
    SourceContext,
)
from sparsefleet.data.sharding import Shard, Sharding
from sparsefleet.data.transforms import (
    HashRange,
    MappedArrangement,
    NotRead,
    OutsideSpans,
    SelectingSource,
    Selection,
    UserFilter,
    check_function,
)
from sparsefleet.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

_COLUMN_RECORDS = 8192  # records per part in `begin_columns`


class Reader:
    """Reads batches from files; each iteration over it reads the files again.

    files: a path, a pattern or a list of these; see `list_files`. All files must already exist.
        With `Records`, files can be None; its function is then called without a path.
    format: `MultiSlot`, `CriteoTsv`, `Csv`, `Parquet`, `ArrowIpc` or `Records`.
    batch_size: records per batch. The last batch of each reading thread may be smaller.
    label: the column that holds the labels; a batch is then (inputs, label).
    threads: the number of reading threads; at most one thread reads each file or, for Parquet, each
        group of a few row groups. With one thread, batches come in the order of the files; with
        several, in any order. All records of a batch come from one thread.
    worker_index, worker_num: which worker's part of the files to read or, with
        `ReaderConfig(share="records")`, which part of the records in each file.
    sharding: replaces `worker_index` and `worker_num`; each file goes to the next free worker. See
        `fleet.sharding("train")`.

    A batch is a dict (or tuple) of columns. The column of a slot with a shape is an array [B,
    *shape]; the column of a slot without a shape is a pair (values [N], offsets int64[B]), as
    accepted by `SparseEmbeddingBag`. All are NumPy arrays over the memory that the parser filled;
    nothing is copied.

    >>> import pathlib, tempfile
    >>> from sparsefleet.data import MultiSlot, Reader, Slot
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "part-0"
    >>> size = path.write_text("2 17 18 1 1\\n1 99 1 0\\n")
    >>> format = MultiSlot(Slot("ads"), Slot("click", "float", ()))
    >>> for inputs, clicks in Reader(path, format, batch_size=2, label="click"):
    ...     values, offsets = inputs["ads"]
    ...     print(values, offsets, clicks)
    [17 18 99] [0 2] [1. 0.]
    """

    def __init__(
        self,
        files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None,
        format: RecordFormat,  # noqa: A002
        batch_size: int,
        *,
        label: str | None = None,
        threads: int = 1,
        config: ReaderConfig | None = None,
        worker_index: int = 0,
        worker_num: int = 1,
        sharding: Sharding | None = None,
    ) -> None:
        _check_count("batch_size", batch_size)
        _check_count("threads", threads)
        if not isinstance(format, RecordFormat):
            raise ConfigError(
                f"format must be a RecordFormat, such as MultiSlot(...), got {format!r}"
            )
        if config is not None and not isinstance(config, ReaderConfig):
            raise ConfigError(f"config must be a ReaderConfig(...) or None, got {config!r:.200}")
        self.config = config or ReaderConfig()
        self._format = format
        self.batch_size = batch_size
        """Number of records per batch."""
        self.threads = threads
        """The maximum number of reading threads."""
        self.columns = format.columns
        """The columns of a batch, in order."""
        self.arrangement: BatchMaker = Arrangement(format.columns, label, self.config)
        """Converts columns to a batch."""
        self._selections: tuple[Selection, ...] = ()
        self._all_files = self._inputs(files)
        mine = split_files(self._all_files, worker_index, worker_num)
        shares_records = files is None or self.config.share == "records"
        self.files = self._all_files if shares_records else mine
        """This worker's files; empty if there are more workers than files."""
        self._share = Share(worker_index, worker_num) if shares_records else WHOLE
        self._num_workers = worker_num
        format.check_config(self.config, self.files)
        if sharding is not None and worker_num != 1:
            raise ConfigError(
                "Reader accepts either worker_index and worker_num, or sharding, but got both"
            )
        if sharding is not None and self.config.share == "records":
            raise ConfigError(
                "ReaderConfig(share='records') divides the records of each file by worker_index "
                "and worker_num, but sharding hands out whole files: use only one of them"
            )
        self._sharding = sharding
        self._is_rest = False
        self.read_before: dict[str, list[list[int]]] = {}
        """For each file, the records to skip because a different reader has read them."""
        self._reset()

    def _reset(self) -> None:
        """Forget all earlier passes, their progress and their counts."""
        self._progress = Progress(self._share)
        self._resumed: Progress | None = None
        self._tally = ReaderTally()
        self._num_threads = 0
        self._passes: weakref.WeakSet[ReaderPass] = weakref.WeakSet()

    def _inputs(
        self, files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None
    ) -> list[str]:
        if files is not None:
            options = self.config.storage_options
            return list_files(files, options, download=self.config.download)
        if self._format.unnamed_input is None:
            raise ConfigError(f"files must be paths for {type(self._format).__name__}, got None")
        return [self._format.unnamed_input]

    @property
    def format(self) -> RecordFormat:
        """Return the format with which the files are parsed."""
        return self._format

    @property
    def has_all_files(self) -> bool:
        """Whether this worker alone reads all files."""
        return len(self.files) == len(self._all_files) and self._share.num == 1

    @property
    def is_selective(self) -> bool:
        """Whether this reader omits records because of `filter` or `split`."""
        return bool(self._selections)

    @property
    def own_files(self) -> list[str] | None:
        """The files that no other worker should read, or None if they are shared or unnamed."""
        has_names = self.files != [self._format.unnamed_input]
        is_own = self._sharding is None and self._share.num == 1 and not self._is_rest
        return self.files if has_names and is_own else None

    @property
    def keeps_order(self) -> bool:
        """Whether batches come in the order of the files."""
        is_one = len(self.files) < 2 and not self._format.splits_files
        return (self.threads == 1 or is_one) and self._sharding is None

    @property
    def record_files(self) -> list[str] | None:
        """All files if batches have no fixed order and are identified by their records, or None."""
        has_names = self.files != [self._format.unnamed_input]
        is_known = self._is_rest or not self.keeps_order
        return self._all_files if has_names and is_known else None

    def of_worker(self, rank: int, files: Sequence[str] | None) -> Reader | None:
        """Return a reader for a different worker's records, or None if those records are not known.

        files: that worker's files, if each worker lists its own.
        """
        new = self._derive()
        if self._sharding is not None:
            epoch = int(getattr(self._sharding, "epoch", 0))
            return self._taken_by(rank, epoch) if epoch else None
        if self._share.num > 1:
            new._share = Share(rank, self._share.num)
        elif self._num_workers > 1:
            new.files = split_files(self._all_files, rank, self._num_workers)
        elif files is not None:
            new._all_files = new.files = list(files)
        else:
            return None
        new._reset()
        return new

    def rest_of_epoch(
        self, state: Mapping[str, Any] | None
    ) -> tuple[Reader, Callable[[], ReaderPass] | None]:
        """Return a reader of the files that this worker's previous process took from the list.

        Also return a function that starts reading the rest of that shared list.

        state: the state of the previous process's reader when the epoch started.
        """
        sharding, epoch = self._sharding, int((state or {}).get("shared_epoch", 0))
        assert sharding is not None
        if not epoch:  # the previous process was the only worker
            alone = self._derive()
            alone._sharding, alone._is_rest = None, True
            return alone, None
        taken = self._taken_by(None, epoch)
        return taken, lambda: self._begin(self.arrangement, sharding.resume(epoch))

    def _taken_by(self, rank: int | None, epoch: int) -> Reader:
        """Return a reader of the files that a worker has taken from the shared list."""
        assert self._sharding is not None
        given = self._sharding.given_to(rank, epoch)
        new = self._derive()
        new._sharding, new._is_rest = None, True
        new.files = [file.path for file in given]
        new.read_before = {file.path: [list(span) for span in file.done] for file in given}
        return new

    def keep_account(self) -> None:
        """Record in the shared file list, if any, that servers track applied records."""
        for one in list(self._passes):
            one.keep_account()

    def require_records(self) -> None:
        """Raise the error of a pass that finds no record or starts with a bad one.

        Reads the first records of this worker's files, but no more than a batch. Does nothing if
        that could have side effects: with a shared file list, a command or a Python function.
        """
        command = self.config.pipe_command or self.config.shell_command
        if self._sharding is not None or command or self._format.unnamed_input is not None:
            return
        first = self._derive()
        first.threads = 1
        first.config = replace(self.config, quarantine=None, queue_batches=1)
        first.arrangement = Arrangement(self.columns, None, self.config)
        with first:
            next(iter(first), None)

    # -- choosing and changing records ---------------------------------------------------------

    def filter(self, function: Callable[[dict[str, Any]], Any]) -> Reader:
        """Return a reader of the records for which `function` is True; batches stay full.

        function: takes a dict with the columns of some records, as in a batch and including the
            label; returns one bool per record, bool[B]. It runs on the reading threads.

        >>> from sparsefleet.data import Reader, Records, Slot
        >>> numbers = Records(lambda: ({"id": i} for i in range(6)), Slot("id", "uint64", ()))
        >>> odd = Reader(None, numbers, batch_size=2).filter(lambda some: some["id"] % 2 == 1)
        >>> [batch["id"].tolist() for batch in odd]
        [[1, 3], [5]]
        """
        check_function("filter", function)
        self._require_no_map("filter")
        return self._derive(UserFilter(function, self.columns, self.config))

    def split(
        self, *, validation: float, seed: int = 0, by: str | None = None
    ) -> tuple[Reader, Reader]:
        """Return a reader of the training records and a reader of the validation records.

        A hash of its values decides where a record goes, so a record is in the same part in every
        pass, on every worker and after resuming, and equal records stay together.

        validation: the approximate share of validation records, between 0 and 1.
        seed: a different seed gives a different split.
        by: a column, such as the user; records with the same values in that column stay together.
        """
        if not isinstance(validation, (int, float)) or not 0 < validation < 1:
            raise ConfigError(f"validation must be between 0 and 1, got {validation!r}")
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**64:
            raise ConfigError(f"seed must be an int in 0..2^64 - 1, got {seed!r}")
        names = [slot.name for slot in self.columns]
        if by is not None and by not in names:
            raise ConfigError(f"by must be one of the columns {names}, got {by!r}")
        self._require_no_map("split")
        hashed = None if by is None else [names.index(by)]
        train = self._derive(HashRange(validation, 1.0, seed, hashed))
        held_out = self._derive(HashRange(0.0, validation, seed, hashed))
        if self._sharding is not None:  # both may be read concurrently
            held_out._sharding = self._sharding.beside("validation")
        return train, held_out

    def map(self, function: Callable[[Any], Any]) -> Reader:
        """Return a reader whose reading threads pass each batch through `function`.

        Apply `filter` and `split` first, since they look at the columns of the format.
        """
        check_function("map", function)
        new = self._derive()
        new.arrangement = MappedArrangement(self.arrangement, function)
        return new

    def _require_no_map(self, name: str) -> None:
        if isinstance(self.arrangement, MappedArrangement):
            raise ConfigError(
                f"Reader.{name} looks at the columns of the format, which map may change: call it "
                f"first, as in reader.{name}(...).map(...)"
            )

    def _derive(self, *selections: Selection) -> Reader:
        new = copy.copy(self)
        new._selections = (*self._selections, *selections)
        new._reset()
        return new

    # -- passes --------------------------------------------------------------------------------

    def __iter__(self) -> ReaderPass:
        """Start reading. Leaving the loop early stops the reading threads."""
        return self.begin(self.arrangement)

    def begin(self, arrangement: BatchMaker) -> ReaderPass:
        """Start a pass, like `iter()`, with batches made by `arrangement`."""
        return self._begin(arrangement)

    def begin_columns(self) -> ReaderPass:
        """Start a pass whose batches are the parser's columns, each as (values, offsets).

        Offsets are int64[B + 1], or None for a column with a shape. Batches are large, and each
        contains records from one part of a file, which `ReaderPass.take` also returns. Short
        batches are not dropped.
        """
        return self._begin(None)

    def _begin(self, arrangement: BatchMaker | None, shard: Shard | None = None) -> ReaderPass:
        progress, self._resumed = self._resumed or Progress(self._share), None
        files = progress.remaining(self.files)
        if self._sharding is not None and shard is None:
            shard = self._sharding.begin(files)
        num_threads = len(files) and self.threads
        if not self._format.splits_files:
            num_threads = min(num_threads, len(files))
        self._num_threads = num_threads
        room = self.config.queue_batches
        if arrangement is None:  # batches are large and are taken as fast as they arrive
            room = min(room, 2 * max(1, num_threads))
        queue: BatchQueue[MarkedBatch] = BatchQueue(room, num_threads)
        context = SourceContext(
            config=self.config,
            bad_lines=BadLines(self.config.max_bad_lines, self.config.quarantine),
            counts=ReaderCounts(),
            stopped=lambda: queue.is_stopped,
            share=self._share,
        )
        cursor = PartCursor(
            FileCursor(files) if shard is None else shard,
            lambda file: self._format.split(file, self.config),
            context.stopped,
        )
        batch_size = self.batch_size if arrangement else max(self.batch_size, _COLUMN_RECORDS)
        producers = [
            Producer(
                self._open_source(context, progress, batch_size),
                batch_size,
                arrangement,
                context,
                cursor=cursor,
                queue=queue,
            )
            for _ in range(num_threads)
        ]
        new = ReaderPass(
            self,
            producers,
            queue=queue,
            context=context,
            progress=progress,
            shard=shard,
            tally=self._tally,
        )
        self._passes.add(new)
        self._progress = progress
        return new

    def _open_source(
        self, context: SourceContext, progress: Progress, batch_size: int
    ) -> RecordSource:
        source = self._format.open_source(context)
        chosen: list[Selection] = [NotRead(progress)] if progress.earlier else []
        gaps = {} if self._format.splits_files else progress.gaps(self.files)
        if gaps:
            chosen.append(OutsideSpans(gaps))
            if self.config.max_bad_lines:  # positions are exact for single records only
                batch_size = 1
        chosen += self._selections
        if not chosen:
            return source
        return SelectingSource(source, chosen, self._share, batch_size=batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Return which records the current pass has handed out.

        The state consists of lists, dicts, strings and numbers. A state taken at the end of a pass
        resumes at the start of the next pass.
        """
        state = (self._resumed or self._progress).state()
        epoch = int(
            getattr(self._sharding, "epoch", 0)
        )  # a user's own Sharding may lack this method
        return {**state, "shared_epoch": epoch} if epoch else state

    def finished_state_dict(self) -> dict[str, Any]:
        """Like `state_dict()`, but resuming from the end of a pass yields no records.

        With `sharding`, it yields the records that other workers had not read when the state was
        taken.
        """
        return {**self.state_dict(), "is_over": False}

    @property
    def is_shared(self) -> bool:
        """Whether all workers share one file list; each then resumes from all workers' states."""
        return self._sharding is not None

    def load_state_dicts(self, states: Iterable[Mapping[str, Any]]) -> None:
        """Resume from the states of all workers of an earlier run, regardless of their number.

        All of those workers must have read the same list of files.
        """
        self.load_state_dict(merge_states(states))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the next pass at the position saved in `state`; later passes are complete.

        With one thread, the resumed pass returns the same batches that the interrupted pass would
        have returned. Bad lines are counted from zero. The number of threads may change, but the
        files may not. For a different number of workers, use `merge_states`.
        """
        self._resumed = Progress.from_state(state, self._all_files, self._share)

    def stats(self) -> ReaderStats:
        """Return the counts over all passes so far, including unfinished ones."""
        return self._tally.total(self._num_threads)

    def close(self) -> None:
        """Stop all running passes; a thread waiting for a batch sees the end of the data."""
        for one in list(self._passes):
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} must be an int >= 1, got {value!r}")
