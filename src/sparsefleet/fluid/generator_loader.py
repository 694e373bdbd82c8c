"""Loaders of batches that a Python generator makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.core import EOFException
from sparsefleet.fluid.data_feeder import DataFeeder, feed_variables
from sparsefleet.fluid.feed_columns import columns_of_batch
from sparsefleet.fluid.feed_pass import Columns, FeedPass
from sparsefleet.fluid.loader import Loader
from sparsefleet.fluid.lod_tensor import LoDTensor
from sparsefleet.fluid.places import CPUPlace, Place, places_of
from sparsefleet.fluid.variable import Variable
from sparsefleet.reader import batch, resumable
from sparsefleet.reader.background import WAIT_S
from sparsefleet.reader.resumable import ReaderFunction

__all__ = ["GeneratorLoader"]


class GeneratorLoader(Loader):
    """Batches from a generator, made ready in the background by a thread.

    feed_list: the variables that a batch is for.
    capacity: batches that may wait in the queue.
    use_double_buffer: keep one more batch ready, on a GPU already there.
    iterable: `for batch in loader` gives batches; else `start`, `reset` and an Executor that calls
        `take_feed` for each run.
    return_list: give lists in the order of feed_list in the place of dicts by name; only when
        iterable.
    drop_last: with several places, leave out a last group of fewer batches than places.
    wait_s: how long a batch may take to come before that is a DataError.

    A batch is a dict name -> LoDTensor; with several places, a list of them. The generator is read
    in order. It is set by one of the `set_*_generator`.

    >>> from sparsefleet import fluid
    >>> ads = fluid.data("ads", [None, 1], "int64")
    >>> loader = GeneratorLoader([ads], capacity=2, iterable=False)
    >>> loader = loader.set_sample_generator(lambda: ((n,) for n in range(4)), batch_size=4)
    >>> loader.start()
    >>> loader.take_feed()["ads"].shape()
    [4, 1]
    >>> loader.reset()
    """

    def __init__(
        self,
        feed_list: Sequence[Variable] | None,
        capacity: int | None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        *,
        drop_last: bool = True,
        wait_s: float = WAIT_S,
    ) -> None:
        if not feed_list:
            raise ConfigError("a loader needs feed_list: the variables that a batch is for")
        if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
            raise ConfigError(
                f"capacity must be an int >= 1, got {capacity!r}: the batches that may wait"
            )
        self._variables = feed_variables(feed_list)
        names = [variable.name for variable in self._variables]
        super().__init__(
            None if return_list and iterable else names,
            capacity=capacity,
            double_buffer=use_double_buffer,
            drop_last=drop_last,
            wait_s=wait_s,
        )
        self._iterable = iterable
        if not iterable and self._variables[0].block is not None:
            self._variables[0].block.program.add_loader(self)
        self._started: FeedPass | None = None

    @property
    def iterable(self) -> bool:
        return self._iterable

    @property
    def feed_list(self) -> list[Variable]:
        """The variables that a batch is for."""
        return list(self._variables)

    @property
    def drop_last(self) -> bool:
        """Whether replicas leave out a last group of fewer batches than there are of them."""
        return self._drop_last

    def use_double_buffer(self) -> None:
        """From the next pass on, keeps one more batch ready."""
        self._double_buffer = True

    def set_sample_generator(
        self,
        reader: ReaderFunction,
        batch_size: int,
        drop_last: bool = True,
        places: Place | Sequence[Place] | None = None,
    ) -> GeneratorLoader:
        """reader: gives samples, each a sequence of fields; they are grouped here.

        drop_last: leave out a last batch that is short.
        """
        if batch_size <= 0:
            raise AssertionError(f"batch_size must be >= 1, got {batch_size}")
        return self.set_sample_list_generator(batch(reader, batch_size, drop_last), places)

    def set_sample_list_generator(
        self, reader: ReaderFunction, places: Place | Sequence[Place] | None = None
    ) -> GeneratorLoader:
        """reader: gives batches, each a list of samples."""
        feeder = DataFeeder(self._variables, CPUPlace())
        return self._set(reader, lambda samples: list(feeder.feed(samples).values()), places)

    def set_batch_generator(
        self, reader: ReaderFunction, places: Place | Sequence[Place] | None = None
    ) -> GeneratorLoader:
        """reader: gives batches, each a list of arrays or LoDTensors, one a variable."""
        return self._set(reader, partial(columns_of_batch, self._variables), places)

    def __call__(self) -> GeneratorLoader:
        """Itself: Fluid programs write `for batch in loader()`."""
        self._check_iterable(True, "iterated")
        return self

    def __iter__(self) -> Iterator[Any]:
        """Begins a pass; one that is under way ends."""
        self._check_iterable(True, "iterated")
        return map(self._shaped, self._begin(self._places))

    def start(self) -> None:
        """Begins to read."""
        self._check_iterable(False, "started")
        if self._started is not None:
            raise RuntimeError("the loader was started already: reset() it first")
        self._started = self._begin([CPUPlace()])

    def take_feed(self) -> dict[str, LoDTensor]:
        """The next batch of a loader that is not iterated, for one replica. Thread-safe.

        An Executor calls it once a run and replica. Raises EOFException at the end of the data, and
        what the generator raised.
        """
        self._check_iterable(False, "taken from")
        started = self._started
        if started is None:
            raise RuntimeError("the loader has not been started: call start() before a run")
        try:
            (columns,) = next(started)
        except StopIteration:
            raise EOFException(
                "the loader has given its last batch: reset() it, and start() it for more"
            ) from None
        return dict(zip(self._names or (), columns, strict=True))

    def reset(self) -> None:
        """Ends the reading; `start()` then begins at the first batch."""
        self._check_iterable(False, "reset")
        self._close()
        self._checked_reader().rewind()

    def _set(
        self,
        reader: ReaderFunction,
        convert: Callable[[Any], Columns],
        places: Place | Sequence[Place] | None,
    ) -> GeneratorLoader:
        if self._iterable:
            if places is None:
                raise AssertionError("places must be given when the loader is iterable")
            self._places = places_of(places)
        self._set_reader(resumable(reader), convert)
        return self

    def _close(self) -> None:
        super()._close()
        self._started = None

    def _check_iterable(self, wanted: bool, what: str) -> None:
        if self._iterable != wanted:
            raise AssertionError(f"a loader with iterable={self._iterable} cannot be {what}")
