"""One pass over the files of a reader."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sparsefleet.data.batch_queue import BatchQueue
from sparsefleet.data.producer import MarkedBatch, Producer
from sparsefleet.data.progress import Progress
from sparsefleet.data.reader_stats import ReaderTally
from sparsefleet.data.record_source import SourceContext
from sparsefleet.data.sharding import Shard
from sparsefleet.errors import InputFileError

if TYPE_CHECKING:
    from typing_extensions import Self

    from sparsefleet.data.reader import Reader

_END_S = 5.0  # for reading threads to come out of what they are in

_log = logging.getLogger("sparsefleet.data")


class ReaderPass:
    """One pass over the files of a reader: an iterator of batches. Thread-safe.

    Its threads end with it: at the end of the data, by `close()`, or when nobody holds it.
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
        self._taking = 0  # consumers between asking for a batch and telling whose records it has
        self._is_over = False
        self._was_resumed = progress.has_begun
        self._queue = queue
        self._counts = context.counts
        threads = [
            threading.Thread(target=producer.run, name=f"sparsefleet-read-{index}", daemon=True)
            for index, producer in enumerate(producers)
        ]
        # Also at the end of the process: a thread inside native code must not outlive Python.
        self._end = weakref.finalize(self, _end_pass, threads, queue, context, tally)
        tally.begin(context.counts, queue)
        for thread in threads:
            thread.start()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __next__(self) -> Any:
        taken = self.take()
        if taken is None:
            raise StopIteration
        return taken.batch

    def take(self) -> MarkedBatch | None:
        """The next batch and where its records come from; None at the end."""
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
            if is_first:  # another consumer may have a last batch that is not reported yet
                self._changed.wait_for(lambda: self._taking == 0, wait_s)
        if is_first:
            self._finish()
        self.close()
        return None

    def close(self) -> None:
        """Ends the reading threads; no more batches come."""
        self._end()
        with self._changed:
            is_first, self._is_over = not self._is_over, True
        if is_first and self._shard is not None:
            self._shard.release()

    def _finish(self) -> None:
        """All that there was has been given out."""
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
        told = (
            f"no record in {len(files)} file(s), the first of them {files[0]}: "
            f"{self._counts['lines']} lines, {self._counts['bad_lines']} of them bad"
        )
        if not self._reader.has_all_files:  # other workers may have records
            _log.warning("%s", told)
            return
        raise InputFileError(told)


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
