"""What a reading thread does: parts of files into batches."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from sparsefleet.data.arrangement import Arrangement
from sparsefleet.data.batch_queue import BatchQueue
from sparsefleet.data.file_cursor import PartCursor
from sparsefleet.data.progress import FileMark
from sparsefleet.data.record_source import (
    ColumnPart,
    FilePart,
    RecordSource,
    SourceContext,
    join_parts,
)


class MarkedBatch(NamedTuple):
    """A batch and which records of the files are in it."""

    batch: Any
    marks: list[FileMark]


class Producer:
    """Reads parts from the cursor until there are none; batches go on over their borders."""

    def __init__(
        self,
        source: RecordSource,
        batch_size: int,
        arrangement: Arrangement | None,
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
        self._parts: list[ColumnPart] = []  # of the batch that is being filled
        self._num_records = 0
        self._marks: list[FileMark] = []

    def run(self) -> None:
        """Until all is read, the queue is closed or something fails."""
        try:
            while not self._queue.is_stopped and (part := self._cursor.take()) is not None:
                self._read(part)
            drop_last = self._context.config.drop_last and self._arrangement is not None
            if self._num_records > 0 and not drop_last:
                self._hand_over()
        except BaseException as error:  # the thread's edge: raised where batches are taken
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
            self._hand_over()  # plain columns have records of one part, so that they can be sorted

    def _hand_over(self) -> bool:
        batch: Any = join_parts(self._parts)
        if self._arrangement is not None:
            batch = self._arrangement.arrange(batch, self._num_records)
        if not self._queue.put(MarkedBatch(batch, self._marks)):
            return False
        self._context.counts.add(records=self._num_records, batches=1)
        self._parts, self._marks, self._num_records = [], [], 0
        return True
