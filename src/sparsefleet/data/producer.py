"""What a reading thread does: files into batches."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterable
from typing import Any, NamedTuple

from sparsefleet import _core
from sparsefleet.data.arrangement import Arrangement
from sparsefleet.data.bad_lines import BadLine, BadLines
from sparsefleet.data.batch_queue import BatchQueue
from sparsefleet.data.byte_source import compression_of, open_file, read_blocks
from sparsefleet.data.pipe_command import PipeCommand
from sparsefleet.data.progress import FileMark, FileToRead
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.reader_stats import ReaderCounts
from sparsefleet.errors import BadLineError, InputFileError

_BAD_LINE = 2


class MarkedBatch(NamedTuple):
    """A batch and how far into the files its records reach."""

    batch: Any
    marks: list[FileMark]


class FileCursor:
    """Hands out each file once, first come, first served. Thread-safe."""

    def __init__(self, files: list[FileToRead]) -> None:
        self._files = iter(files)
        self._lock = threading.Lock()

    def take(self) -> FileToRead | None:
        with self._lock:
            return next(self._files, None)


class Producer:
    """Reads files from the cursor until there are none; batches go on over their borders."""

    def __init__(
        self,
        native: _core.RecordFormat,
        batch_size: int,
        arrangement: Arrangement | None,
        config: ReaderConfig,
        *,
        cursor: FileCursor,
        queue: BatchQueue[MarkedBatch],
        bad_lines: BadLines,
        counts: ReaderCounts,
    ) -> None:
        self._parser = _core.RecordParser(native, config.max_line_bytes)
        self._batch = _core.ColumnBatch(native)
        self._batch_size = batch_size
        self._arrangement = arrangement
        self._config = config
        self._cursor = cursor
        self._queue = queue
        self._bad_lines = bad_lines
        self._counts = counts
        self._ended: list[FileMark] = []  # files whose last records the next batch has

    def run(self) -> None:
        """Until all files are read, the queue is closed or something fails."""
        try:
            while not self._queue.is_stopped and (file := self._cursor.take()) is not None:
                self._read_file(file)
            drop_last = self._config.drop_last and self._arrangement is not None
            if len(self._batch) > 0 and not drop_last:
                self._hand_over([])
        except BaseException as error:  # the thread's edge: raised where batches are taken
            self._queue.fail(error)
        finally:
            self._queue.end_producer()

    def _read_file(self, file: FileToRead) -> None:
        path = file.path
        pipe = None
        if self._config.command is not None:
            pipe = PipeCommand(
                self._config.command,
                path,
                self._config.pipe_timeout_s,
                lambda: self._queue.is_stopped,
            )
        try:
            with contextlib.closing(self._blocks(path, pipe)) as blocks:
                self._parse(file, blocks)
        except BadLineError as error:
            if pipe is None:
                raise
            raise BadLineError(f"{error}; {pipe.account()}") from error
        self._counts.add(files=1)

    def _blocks(self, path: str, pipe: PipeCommand | None) -> Generator[bytes, None, None]:
        config = self._config
        with open_file(path, config.storage_options) as file:
            compression = compression_of(path, config.compression)
            source = read_blocks(file, path, compression, config.block_bytes)
            yield from source if pipe is None else pipe.blocks(source, config.block_bytes)

    def _parse(self, file: FileToRead, blocks: Iterable[bytes]) -> None:
        self._parser.begin_file(file.skip_lines)
        for block in blocks:
            self._parser.feed(block)
            self._drain(file, len(block))
            if self._queue.is_stopped:
                return
        self._parser.finish()
        self._drain(file, 0)
        if self._parser.line < file.skip_lines:
            raise InputFileError(
                f"{file.path}: has {self._parser.line} lines, but {file.skip_lines} had been read "
                "when the state was saved: it is another file now"
            )
        self._ended.append(FileMark(file.path, self._parser.line, True))

    def _drain(self, file: FileToRead, num_bytes: int) -> None:
        """Parses all of the block that was fed."""
        before = max(self._parser.line, file.skip_lines)
        while outcome := self._parser.parse(self._batch, self._batch_size):
            if outcome == _BAD_LINE:
                self._counts.add(bad_lines=1)
                self._bad_lines.take(BadLine(file.path, *self._parser.bad_line))
            elif not self._hand_over([FileMark(file.path, self._parser.line, False)]):
                return
        self._counts.add(lines=max(self._parser.line, file.skip_lines) - before, bytes=num_bytes)

    def _hand_over(self, reached: list[FileMark]) -> bool:
        num_records = len(self._batch)
        batch: Any = self._batch.take()
        if self._arrangement is not None:
            batch = self._arrangement.arrange(batch, num_records)
        if not self._queue.put(MarkedBatch(batch, self._ended + reached)):
            return False
        self._ended = []
        self._counts.add(records=num_records, batches=1)
        return True
