"""One pass over the files of a Reader, with the cursor that hands out files and the reading
threads.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sparsefleet.data.batch_queue import BatchQueue
from sparsefleet.data.progress import FileMark, FileToRead, Progress
from sparsefleet.data.reader_stats import ReaderTally
from sparsefleet.data.record_source import (
    BatchMaker,
    ColumnPart,
    FilePart,
    RecordSource,
    SourceContext,
    join_parts,
)
from sparsefleet.data.sharding import Shard
from sparsefleet.errors import InputFileError

if TYPE_CHECKING:
    from typing_extensions import Self

    from sparsefleet.data.reader import Reader

_END_S = 5.0  # time for reading threads to stop
_log = logging.getLogger("sparsefleet.data")
_POLL_S = 0.2  # maximum time until the end of a pass is noticed


class MarkedBatch(NamedTuple):
    """A batch, and the records of files that it holds."""

    batch: Any
    marks: list[FileMark]


class Producer:
    """Reads parts of files from the cursor until none are left; batches may span several parts."""

    def __init__(
        self,
        source: RecordSource,
        batch_size: int,
        arrangement: BatchMaker | None,
        context: SourceContext,
        *,
        cursor: PartCursor,
        queue: BatchQueue[MarkedBatch],
    ) -> None:
        self._source = source
        self._batch_size = batch_size
        self._arrangement = arrangement
        self._context = context
        self._cursor = cursor
        self._queue = queue
        self._parts: list[ColumnPart] = []  # parts of the batch being filled
        self._num_records = 0
        self._marks: list[FileMark] = []

    def run(self) -> None:
        """Read until all parts are read, the queue is closed, or an error occurs."""
        try:
            while not self._queue.is_stopped and (part := self._cursor.take()) is not None:
                self._read(part)
            drop_last = self._context.config.drop_last and self._arrangement is not None
            if self._num_records > 0 and not drop_last:
                self._hand_over()
        except BaseException as error:  # thread boundary: raised where batches are taken
            self._queue.fail(error)
        finally:
            self._queue.end_producer()

    def _room(self) -> int:
        return self._batch_size - self._num_records

    def _read(self, part: FilePart) -> None:
        begin, total = part.begin, None
        with contextlib.closing(self._source.read(part, self._room)) as pieces:
            for piece in pieces:
                self._marks.append(FileMark(part.path, begin, piece.end, piece.total))
                begin, total = piece.end, piece.total
                if piece.num_records > 0:
                    self._parts.append(piece)
                    self._num_records += piece.num_records
                if self._room() == 0 and not self._hand_over():
                    return
        if begin == total:
            self._context.counts.add(files=1)
        if self._arrangement is None and self._num_records > 0:
            self._hand_over()  # a batch has records of one part only, so batches can be sorted

    def _hand_over(self) -> bool:
        batch: Any = join_parts(self._parts)
        if self._arrangement is not None:
            batch = self._arrangement.arrange(batch, self._num_records)
        if not self._queue.put(MarkedBatch(batch, self._marks)):
            return False
        self._context.counts.add(records=self._num_records, batches=1)
        self._parts, self._marks, self._num_records = [], [], 0
        return True


class ReaderPass:
    """One pass over the files of a reader, as an iterator of batches. Thread-safe.

    The reading threads stop at the end of the data, on `close()`, or when this object is
    garbage-collected.
    """

    def __init__(
        self,
        reader: Reader,
        producers: list[Producer],
        *,
        queue: BatchQueue[MarkedBatch],
        context: SourceContext,
        progress: Progress,
        shard: Shard | None,
        tally: ReaderTally,
    ) -> None:
        self._reader = reader
        self._progress = progress
        self._shard = shard
        self._changed = threading.Condition()
        self._taking = 0  # consumers that have asked for a batch and not yet reported its records
        self._is_over = False
        self._was_resumed = progress.has_begun
        self._queue = queue
        self._counts = context.counts
        threads = [
            threading.Thread(target=producer.run, name=f"sparsefleet-read-{index}", daemon=True)
            for index, producer in enumerate(producers)
        ]
        # Also runs at process exit, since a thread in native code must not outlive Python.
        self._end = weakref.finalize(self, _end_pass, threads, queue, context, tally)
        tally.begin(context.counts, queue)
        for thread in threads:
            thread.start()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> Any:
        taken = self.take()
        if taken is None:
            raise StopIteration
        return taken.batch

    def take(self) -> MarkedBatch | None:
        """Return the next batch and the file records it is from; None at the end of the data."""
        wait_s = self._reader.config.wait_s
        with self._changed:
            self._taking += 1
        try:
            taken = self._queue.take(wait_s)
            if taken is not None:
                self._progress.advance(taken.marks)
                if self._shard is not None:
                    self._shard.report(taken.marks)
                return taken
        except BaseException:
            self.close()
            raise
        finally:
            with self._changed:
                self._taking -= 1
                self._changed.notify_all()
        with self._changed:
            is_first = self._end.alive and not self._is_over
            self._is_over = True
            if is_first:  # a different consumer may have a last batch that is not yet reported
                self._changed.wait_for(lambda: self._taking == 0, wait_s)
        if is_first:
            self._finish()
        self.close()
        return None

    def keep_account(self) -> None:
        """Record in the shared file list, if any, that servers track applied records."""
        if self._shard is not None:
            self._shard.keep_account()

    def close(self) -> None:
        """Stop the reading threads; no more batches will be returned."""
        self._end()
        with self._changed:
            is_first, self._is_over = not self._is_over, True
        if is_first and self._shard is not None:
            self._shard.release()

    def _finish(self) -> None:
        """Record that the pass is finished. Raises an error if the files had no records."""
        if self._shard is not None:
            self._progress.end(self._shard.finish())
            return
        self._progress.end(self._reader.files)
        if not self._counts["records"] and not self._was_resumed and self._reader.files:
            self.close()
            self._complain_of_nothing()

    def _complain_of_nothing(self) -> None:
        if self._reader.config.drop_last and self._counts["lines"] > self._counts["bad_lines"]:
            return
        files = self._reader.files
        if self._reader.is_selective and self._counts["lines"] > self._counts["bad_lines"]:
            _log.warning(
                "Reader.filter or Reader.split removed all of the %d records in %d file(s), the "
                "first of which is %s",
                self._counts["lines"] - self._counts["bad_lines"],
                len(files),
                files[0],
            )
            return
        message = (
            f"no records in {len(files)} file(s), the first of which is {files[0]}: "
            f"{self._counts['lines']} lines, {self._counts['bad_lines']} of them bad"
        )
        if not self._reader.has_all_files:  # other workers may have records
            _log.warning("%s", message)
            return
        raise InputFileError(message)


def _end_pass(
    threads: list[threading.Thread],
    queue: BatchQueue[MarkedBatch],
    context: SourceContext,
    tally: ReaderTally,
) -> None:
    queue.close()
    for thread in threads:
        if thread is not threading.current_thread() and thread.ident is not None:
            thread.join(_END_S)
    context.bad_lines.close()
    tally.end(context.counts, queue)


class Cursor(Protocol):
    """Hands out files. Thread-safe."""

    def take(self) -> FileToRead | None:
        """Return the next file, or None once there are no more."""


class FileCursor:
    """Hands out each file once. Thread-safe."""

    def __init__(self, files: list[FileToRead]) -> None:
        self._files = iter(files)
        self._lock = threading.Lock()

    def take(self) -> FileToRead | None:
        with self._lock:
            return next(self._files, None)


class PartCursor:
    """Hands out the parts of a cursor's files, one file after another. Thread-safe.

    split: returns the parts of a file, in order; may read the file.
    """

    def __init__(
        self,
        files: Cursor,
        split: Callable[[FileToRead], list[FilePart]],
        stopped: Callable[[], bool],
    ) -> None:
        self._files = files
        self._split = split
        self._stopped = stopped
        self._parts: deque[FilePart] = deque()
        self._splitting = 0
        self._has_files = True
        self._changed = threading.Condition()

    def take(self) -> FilePart | None:
        """Return the next part, or None if none are left; waits for threads that split files."""
        while not self._stopped():
            with self._changed:
                if self._parts:
                    return self._parts.popleft()
                if not self._has_files and self._splitting == 0:
                    return None
                if not self._has_files:
                    self._changed.wait(_POLL_S)
                    continue
                self._splitting += 1
            self._split_next()
        return None

    def _split_next(self) -> None:
        """Take and split a file without holding the lock, since both may wait for I/O."""
        file: FileToRead | None = None
        parts: list[FilePart] = []
        try:
            file = self._files.take()
            if file is not None:
                parts = self._split(file)
        finally:
            with self._changed:
                self._splitting -= 1
                self._has_files = self._has_files and file is not None
                self._parts.extend(parts)
                self._changed.notify_all()
