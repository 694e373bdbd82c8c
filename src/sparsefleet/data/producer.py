"""What a reading thread does: files into batches."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterable
from typing import Any

from sparsefleet import _core
from sparsefleet.data.arrangement import Arrangement
from sparsefleet.data.bad_lines import BadLine, BadLines
from sparsefleet.data.batch_queue import BatchQueue
from sparsefleet.data.byte_source import compression_of, open_file, read_blocks
from sparsefleet.data.pipe_command import PipeCommand
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.reader_stats import ReaderCounts
from sparsefleet.errors import BadLineError

_BATCH_FULL = 1
_BAD_LINE = 2


class FileCursor:
    """Hands out each file once, first come, first served. Thread-safe."""

    def __init__(self, files: list[str]) -> None:
        self._files = iter(files)
        self._lock = threading.Lock()

    def take(self) -> str | None:
        with self._lock:
            return next(self._files, None)


class Producer:
    """Reads files from the cursor until there are none; batches go on over their borders."""

    def __init__(
        self,
        native: _core.RecordFormat,
        batch_size: int,
        arrangement: Arrangement,
        config: ReaderConfig,
        *,
        cursor: FileCursor,
        queue: BatchQueue[Any],
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

    def run(self) -> None:
        """Until all files are read, the queue is closed or something fails."""
        try:
            while not self._queue.is_stopped and (path := self._cursor.take()) is not None:
                self._read_file(path)
            if len(self._batch) > 0 and not self._config.drop_last:
                self._hand_over()
        except BaseException as error:  # the thread's edge: raised where batches are taken
            self._queue.fail(error)
        finally:
            self._queue.end_producer()

    def _read_file(self, path: str) -> None:
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
                self._parse(path, blocks)
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

    def _parse(self, path: str, blocks: Iterable[bytes]) -> None:
        self._parser.begin_file()
        for block in blocks:
            self._parser.feed(block)
            self._drain(path, len(block))
            if self._queue.is_stopped:
                return
        self._parser.finish()
        self._drain(path, 0)

    def _drain(self, path: str, num_bytes: int) -> None:
        """Parses all of the block that was fed."""
        lines_before = self._parser.line
        while outcome := self._parser.parse(self._batch, self._batch_size):
            if outcome == _BAD_LINE:
                self._counts.add(bad_lines=1)
                self._bad_lines.take(BadLine(path, *self._parser.bad_line))
            elif outcome == _BATCH_FULL and not self._hand_over():
                return
        self._counts.add(lines=self._parser.line - lines_before, bytes=num_bytes)

    def _hand_over(self) -> bool:
        num_records = len(self._batch)
        batch = self._arrangement.arrange(self._batch.take(), num_records)
        if not self._queue.put(batch):
            return False
        self._counts.add(records=num_records, batches=1)
        return True
