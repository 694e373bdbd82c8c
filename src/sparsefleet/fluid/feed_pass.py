"""One pass of a loader: batches made ready in the background."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from sparsefleet.data.reader_stats import ReaderCounts, ReaderTally
from sparsefleet.fluid.device_copies import Copying, DeviceCopies
from sparsefleet.fluid.lod_tensor import LoDTensor
from sparsefleet.fluid.places import Place
from sparsefleet.reader.background import Background, close_iterator
from sparsefleet.reader.resumable import PassProgress

__all__ = ["Columns", "FeedPass", "Walk"]

Columns = list[LoDTensor]
"""What one place is fed with: a tensor for each variable, in their order."""

Walk = Iterator[tuple[Any, Any]]
"""Batches as a generator gives them, each with the position after it."""

_WHAT = "the generator of the loader"


class FeedPass(Iterator[list[Columns]]):
    """Groups of batches, one batch a place, in the order of the generator. Thread-safe.

    progress: is kept up to what was given out.
    tally: gets the counts of this pass.
    convert: makes columns of a batch, in the thread that runs the generator.
    drop_last: leave out a last group with fewer batches than places.

    Its threads end with it: at the end, by `close()`, or when nobody holds it. An error of the
    generator comes after the batches before it, each time that one is asked for.
    """

    def __init__(
        self,
        walk: Walk,
        convert: Callable[[Any], Columns],
        places: Sequence[Place],
        progress: PassProgress,
        *,
        capacity: int,
        double_buffer: bool,
        drop_last: bool,
        wait_s: float,
        tally: ReaderTally,
    ) -> None:
        self._progress = progress
        self._counts = ReaderCounts()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        to_be_placed = not all(place.is_cpu for place in places)
        # In plain memory a batch is ready when it was made: one more of them is all there is to do.
        size = max(1, capacity // len(places)) + (double_buffer and not to_be_placed)
        made = Background(
            lambda: _groups(walk, convert, len(places), drop_last), size, what=_WHAT, wait_s=wait_s
        )
        stages: list[Background[Any]] = [made]
        if double_buffer and to_be_placed:
            placed = Background(lambda: _placed(made, places), 1, what=_WHAT, wait_s=wait_s)
            stages.append(placed)
        self._ready = stages[-1] if len(stages) > 1 else _placed(made, places)
        self._end = weakref.finalize(self, _close, stages, self._counts, tally)
        tally.begin(self._counts, stages[-1].queue)

    def __next__(self) -> list[Columns]:
        with self._lock:
            if self._error is not None:
                raise self._error
            try:
                copies, self._progress.position = next(self._ready)
            except StopIteration:
                self._progress.is_over = True
                raise
            except BaseException as error:
                self._error = error
                raise
        group = [copying.finish() for copying in copies]
        self._count(group)
        return group

    def _count(self, group: list[Columns]) -> None:
        self._counts.add(
            batches=len(group),
            records=sum(columns[0].num_samples for columns in group if columns),
            bytes=sum(column.tensor.nbytes for columns in group for column in columns),
        )

    def close(self) -> None:
        """Ends the threads; no more batches come. Thread-safe."""
        self._end()


def _groups(
    walk: Walk, convert: Callable[[Any], Columns], num_places: int, drop_last: bool
) -> Iterator[tuple[list[Columns], Any]]:
    try:
        while group := list(islice(walk, num_places)):
            if len(group) < num_places and drop_last:
                return
            yield [convert(batch) for batch, _ in group], group[-1][1]
    finally:  # threads and processes behind it must not wait until nobody holds the error
        close_iterator(walk)


def _placed(
    groups: Iterator[tuple[list[Columns], Any]], places: Sequence[Place]
) -> Iterator[tuple[list[Copying], Any]]:
    copies = [DeviceCopies(place) for place in places]
    for group, position in groups:
        pairs = zip(copies, group, strict=False)
        yield [place.begin(columns) for place, columns in pairs], position


def _close(stages: list[Background[Any]], counts: ReaderCounts, tally: ReaderTally) -> None:
    """From the generator on: a later stage may be waiting for it."""
    for stage in stages:
        stage.close()
    tally.end(counts, stages[-1].queue)
