"""The base class for all loaders: resumable passes over a reader, prepared in the background."""

from __future__ import annotations

import weakref
from collections import UserDict
from collections.abc import Callable, ItemsView, KeysView, Mapping, Sequence, ValuesView
from typing import Any

from sparsefleet.data import ReaderStats
from sparsefleet.data.reader_stats import ReaderTally
from sparsefleet.fluid.feeding.feed_pass import Columns, FeedPass
from sparsefleet.fluid.framework.lod_tensor import LoDTensor
from sparsefleet.fluid.framework.places import CPUPlace, Place
from sparsefleet.fluid.paddle.reader import ResumableReader

__all__ = ["DataLoaderBase", "FeedOfPlace", "Loader"]


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
