"""The base class for all loaders: resumable passes over a reader, prepared in the background."""

from __future__ import annotations

import threading
import weakref
from collections import UserDict
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import cuda

from sparsefleet.data import ReaderStats
from sparsefleet.data.reader_stats import ReaderCounts, ReaderTally
from sparsefleet.errors import SparseFleetError
from sparsefleet.fluid.framework.call_site import EnforceNotMet
from sparsefleet.fluid.framework.lod_tensor import LoDTensor
from sparsefleet.fluid.framework.places import CPUPlace, CUDAPinnedPlace, CUDAPlace, Place
from sparsefleet.fluid.paddle.reader import ResumableReader
from sparsefleet.fluid.paddle.reader.background import Background, close_iterator
from sparsefleet.fluid.paddle.reader.resumable import PassProgress

__all__ = [
    "Columns",
    "Copying",
    "DataLoaderBase",
    "DeviceCopies",
    "FeedOfPlace",
    "FeedPass",
    "Loader",
    "Walk",
]


Columns = list[LoDTensor]
"""The feed of one place: a tensor per variable, in order."""

Walk = Iterator[tuple[Any, Any]]
"""A generator's batches, each with the position that follows it."""

_WHAT = "the generator of the loader"


class FeedPass(Iterator[list[Columns]]):
    """Groups of batches, one batch per place, in the order of the generator. Thread-safe.

    progress: updated when batches are returned.
    tally: receives the counts of this pass.
    convert: converts a batch to columns, in the thread that runs the generator.
    drop_last: drop the last group if it has fewer batches than places.

    The threads stop at the end of the data, on `close()`, or when this object is garbage-collected.
    An error in the generator is raised after all batches that precede it, and again on each later
    request.
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
        # In CPU memory a batch is ready once it is built, so one more buffered batch suffices.
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
        self.queue = stages[-1].queue
        tally.begin(self._counts, self.queue)

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
                self._error = as_enforced(error)
                if self._error is error:
                    raise
                raise self._error from error
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
        """Stop the threads and return no more batches. Thread-safe."""
        self._end()


def as_enforced(error: BaseException) -> BaseException:
    """Return a generator's error as an exception that is also Fluid's EnforceNotMet."""
    kind = type(error)
    if isinstance(error, (EnforceNotMet, SparseFleetError)) or not isinstance(error, Exception):
        return error
    try:
        made: BaseException = type(kind.__name__, (EnforceNotMet, kind), {})(*error.args)
    except TypeError:  # its class takes other arguments or cannot be combined
        return error
    return made


def _groups(
    walk: Walk, convert: Callable[[Any], Columns], num_places: int, drop_last: bool
) -> Iterator[tuple[list[Columns], Any]]:
    try:
        while group := list(islice(walk, num_places)):
            if len(group) < num_places and drop_last:
                return
            yield [convert(batch) for batch, _ in group], group[-1][1]
    finally:  # otherwise an error's traceback keeps its threads and processes alive
        close_iterator(walk)


def _placed(
    groups: Iterator[tuple[list[Columns], Any]], places: Sequence[Place]
) -> Iterator[tuple[list[Copying], Any]]:
    copies = [DeviceCopies(place) for place in places]
    for group, position in groups:
        pairs = zip(copies, group, strict=False)
        yield [place.begin(columns) for place, columns in pairs], position


def _close(stages: list[Background[Any]], counts: ReaderCounts, tally: ReaderTally) -> None:
    """Close the stages, starting with the generator, since a later stage may be waiting for it."""
    for stage in stages:
        stage.close()
    tally.end(counts, stages[-1].queue)


@dataclass(frozen=True, slots=True)
class Copying:
    """A batch that is being copied to a place."""

    columns: list[LoDTensor]
    copied: Any = None
    """The GPU stream's event after the copy; None if the copy is already complete."""

    def finish(self) -> list[LoDTensor]:
        """Return the batch, for use by later GPU work of the calling thread. Does not block."""
        if self.copied is not None:
            stream = cuda.current_stream(self.columns[0].tensor.device)
            stream.wait_event(self.copied)
            for column in self.columns:
                column.tensor.record_stream(stream)  # so that memory is not reused too early
        return self.columns


class DeviceCopies:
    """Copies batches to a place.

    Copies to a GPU use a separate stream and overlap with computation.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._stream: Any = None

    def begin(self, columns: Sequence[LoDTensor]) -> Copying:
        """Start copying a batch; copies to CPU memory are complete on return."""
        place = self._place
        if place.is_cpu or not isinstance(place, CUDAPlace) or not columns:
            return Copying([column.to_place(place) for column in columns])
        if self._stream is None:
            self._stream = cuda.Stream(device=place.device_id)  # type: ignore[no-untyped-call]
        with cuda.stream(self._stream):
            pinned = [column.to_place(CUDAPinnedPlace()) for column in columns]
            placed = [column.to_place(place) for column in pinned]
            return Copying(placed, self._stream.record_event())


class FeedOfPlace(UserDict[str, LoDTensor]):
    """A feed that is both a dict keyed by name and, like the list that Fluid returns, a sequence of
    one dict per place.

    >>> feed = FeedOfPlace(ads=LoDTensor())
    >>> list(feed[0])
    ['ads']
    >>> feed[0]["ads"] = LoDTensor()
    >>> feed["ads"] is feed[0]["ads"]
    True
    """

    def __iter__(self) -> Any:
        """Yield the feed of each place, as Fluid's list does. Use keys() for the names."""
        return iter([self.data])

    def __len__(self) -> int:
        """Return the number of places."""
        return 1

    def __missing__(self, key: object) -> dict[str, LoDTensor]:
        if key in (0, -1):
            return self.data
        raise KeyError(key)

    def keys(self) -> KeysView[str]:
        return self.data.keys()

    def values(self) -> ValuesView[LoDTensor]:
        return self.data.values()

    def items(self) -> ItemsView[str, LoDTensor]:
        return self.data.items()

    def copy(self) -> FeedOfPlace:
        return FeedOfPlace(self.data)


class DataLoaderBase:
    """The interface of Fluid's loaders: a callable iterator."""

    def __call__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")

    def __next__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __next__")


class Loader:
    """Batches from a reader, each a dict of name -> LoDTensor or, with several places, a list of
    dicts.

    names: names of the variables that a batch provides values for; None returns lists instead of
        dicts.
    threads: the number of threads or processes that run the reader.
    """

    def __init__(
        self,
        names: Sequence[str] | None,
        *,
        capacity: int,
        double_buffer: bool,
        drop_last: bool,
        wait_s: float,
        threads: int = 1,
    ) -> None:
        self._names = names
        self._capacity = capacity
        self._double_buffer = double_buffer
        self._drop_last = drop_last
        self._wait_s = wait_s
        self._threads = threads
        self._tally = ReaderTally()
        self._reader: ResumableReader | None = None
        self._convert: Callable[[Any], Columns] = list
        self._places: list[Place] = [CPUPlace()]
        self._last_close: Callable[[], Callable[[], None] | None] = lambda: None

    def stats(self) -> ReaderStats:
        """Return the samples, batches and bytes of all passes so far, and the waiting times.

        Samples are counted as `records`; lines are not counted.
        """
        return self._tally.total(self._threads)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the current pass, not counting batches prepared ahead.

        At the end of a pass, this is the start of the next pass. The result holds only lists,
        dicts, strings and numbers.
        """
        return self._checked_reader().state_dict()

    def finished_state_dict(self) -> dict[str, Any]:
        """Like `state_dict`, but resuming from the end of a pass yields no batches."""
        return self._checked_reader().finished_state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass resume from the position in `state`; later passes start over."""
        self._checked_reader().load_state_dict(state)
        self._close()

    def _set_reader(self, reader: ResumableReader, convert: Callable[[Any], Columns]) -> None:
        self._close()
        self._reader = reader
        self._convert = convert

    def _begin(self, places: list[Place]) -> FeedPass:
        """Start a pass, canceling any pass in progress."""
        reader = self._checked_reader()
        self._close()
        progress, walk = reader.begin()
        begun = FeedPass(
            walk,
            self._convert,
            places,
            progress,
            capacity=self._capacity,
            double_buffer=self._double_buffer,
            drop_last=self._drop_last,
            wait_s=self._wait_s,
            tally=self._tally,
        )
        # Only the loop references an iterated pass, so the pass ends with the loop.
        self._last_close = weakref.WeakMethod(begun.close)
        return begun

    def _close(self) -> None:
        close = self._last_close()
        if close is not None:
            close()

    def _shaped(self, group: list[Columns]) -> Any:
        shaped = list(map(self._named, group))
        if len(self._places) > 1:
            return shaped
        return FeedOfPlace(shaped[0]) if isinstance(shaped[0], dict) else shaped[0]

    def _named(self, columns: Columns) -> dict[str, LoDTensor] | Columns:
        return columns if self._names is None else dict(zip(self._names, columns, strict=True))

    def _checked_reader(self) -> ResumableReader:
        if self._reader is None:
            raise AssertionError("the loader has no data; set a generator first")
        return self._reader
