"""What all loaders are: passes over a reader, made ready in the background, that can go on."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparsefleet.data import ReaderStats
from sparsefleet.data.reader_stats import ReaderTally
from sparsefleet.fluid.feed_pass import Columns, FeedPass
from sparsefleet.fluid.lod_tensor import LoDTensor
from sparsefleet.fluid.places import CPUPlace, Place
from sparsefleet.reader import ResumableReader

__all__ = ["FeedOfPlace", "Loader"]


class FeedOfPlace(dict[str, LoDTensor]):
    """What is fed at one place. Fluid has a list of these, of which its programs take the first.

    >>> feed = FeedOfPlace()
    >>> feed[0] is feed
    True
    """

    def __missing__(self, key: object) -> FeedOfPlace:
        if key == 0:
            return self
        raise KeyError(key)


class Loader:
    """Batches of a reader, each a dict name -> LoDTensor; with several places, a list of them.

    names: of the variables that a batch is for; None gives lists in the place of dicts.
    threads: or processes, that run the reader.
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
        """Samples, batches and bytes given in all passes so far, and how long either side waited.

        Samples are `records`; nothing here has lines.
        """
        return self._tally.total(self._threads)

    def state_dict(self) -> dict[str, Any]:
        """Where the last pass that was begun is: the batches that it has given, not those ready.

        At its end, the beginning of the next one. Of plain lists, dicts, texts and numbers.
        """
        return self._checked_reader().state_dict()

    def finished_state_dict(self) -> dict[str, Any]:
        """Where the last pass that was begun is, also at its end: going on there gives nothing."""
        return self._checked_reader().finished_state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass goes on after the batch where `state` was taken; later ones are whole."""
        self._checked_reader().load_state_dict(state)
        self._close()

    def _set_reader(self, reader: ResumableReader, convert: Callable[[Any], Columns]) -> None:
        self._close()
        self._reader = reader
        self._convert = convert

    def _begin(self, places: list[Place]) -> FeedPass:
        """A new pass; one that is under way ends."""
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
        # Only whoever loops holds an iterated pass: it ends when the loop is left.
        self._last_close = weakref.WeakMethod(begun.close)
        return begun

    def _close(self) -> None:
        close = self._last_close()
        if close is not None:
            close()

    def _shaped(self, group: list[Columns]) -> Any:
        shaped: list[Any] = list(map(self._named, group))
        return shaped if len(self._places) > 1 else shaped[0]

    def _named(self, columns: Columns) -> dict[str, LoDTensor] | Columns:
        return (
            columns if self._names is None else FeedOfPlace(zip(self._names, columns, strict=True))
        )

    def _checked_reader(self) -> ResumableReader:
        if self._reader is None:
            raise AssertionError("the loader has no data: set one of its generators first")
        return self._reader
