"""Load batches from a Python generator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from sparsefleet.data.batch_queue import BatchQueue
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.feeding.data_feeder import DataFeeder, columns_of_batch, feed_variables
from sparsefleet.fluid.feeding.loader import Columns, FeedPass, Loader
from sparsefleet.fluid.framework import in_dygraph_mode
from sparsefleet.fluid.framework.core import EOFException
from sparsefleet.fluid.framework.lod_tensor import LoDTensor
from sparsefleet.fluid.framework.places import CPUPlace, Place, places_of
from sparsefleet.fluid.framework.variable import Variable
from sparsefleet.fluid.paddle.reader import batch, resumable
from sparsefleet.fluid.paddle.reader.background import WAIT_S
from sparsefleet.fluid.paddle.reader.resumable import ReaderFunction

__all__ = ["GeneratorLoader", "PyReader"]


class GeneratorLoader(Loader):
    """Loads batches from a generator in a background thread.

    feed_list: the variables that a batch provides values for.
    capacity: the number of batches to buffer.
    use_double_buffer: keep one more batch ready, already on the GPU if there is one.
    iterable: yield batches in `for batch in loader`; otherwise use `start` and `reset`, and an
        Executor calls `take_feed` for each run.
    return_list: yield lists in the order of feed_list instead of dicts; only when iterable.
    drop_last: with several places, drop a last group with fewer batches than places.
    wait_s: seconds to wait for a batch before raising DataError.

    A batch is a dict of name -> LoDTensor or, with several places, a list of dicts. The generator
    is read in order. Set it with one of the `set_*_generator` methods.

    In imperative mode, a batch is a list of variables, and feed_list may be omitted.

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
        self._is_eager = in_dygraph_mode()
        if not feed_list and not self._is_eager:
            raise ConfigError("a loader needs feed_list, the variables that its batches feed")
        if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
            raise ConfigError(
                f"capacity, the number of batches to buffer, must be an int >= 1, got {capacity!r}"
            )
        self._variables = feed_variables(feed_list or ())
        names = [variable.name for variable in self._variables]
        super().__init__(
            None if self._is_eager or (return_list and iterable) else names,
            capacity=capacity,
            double_buffer=use_double_buffer,
            drop_last=drop_last,
            wait_s=wait_s,
        )
        self._iterable = iterable or self._is_eager
        if not self._iterable and self._variables[0].block is not None:
            self._variables[0].block.program.add_loader(self)
        self._started: FeedPass | None = None

    @property
    def iterable(self) -> bool:
        return self._iterable

    @property
    def feed_list(self) -> list[Variable]:
        """Return the variables that each batch provides values for."""
        return list(self._variables)

    @property
    def drop_last(self) -> bool:
        """Return whether a last group with fewer batches than replicas is dropped."""
        return self._drop_last

    def use_double_buffer(self) -> None:
        """Keep one more batch ready, starting with the next pass."""
        self._double_buffer = True

    def set_sample_generator(
        self,
        reader: ReaderFunction,
        batch_size: int,
        drop_last: bool = True,
        places: Place | Sequence[Place] | None = None,
    ) -> GeneratorLoader:
        """Set a reader of samples, each a sequence of fields; the loader groups them into batches.

        drop_last: drop a short last batch.
        """
        if batch_size <= 0:
            raise AssertionError(f"batch_size must be >= 1, got {batch_size}")
        return self.set_sample_list_generator(batch(reader, batch_size, drop_last), places)

    def set_sample_list_generator(
        self, reader: ReaderFunction, places: Place | Sequence[Place] | None = None
    ) -> GeneratorLoader:
        """Set a reader of batches, each a list of samples."""
        if self._is_eager:
            return self._set(reader, lambda samples: _arrays(zip(*samples, strict=True)), places)
        feeder = DataFeeder(self._variables, CPUPlace())
        return self._set(reader, lambda samples: list(feeder.feed(samples).values()), places)

    def set_batch_generator(
        self, reader: ReaderFunction, places: Place | Sequence[Place] | None = None
    ) -> GeneratorLoader:
        """Set a reader of batches, each a list of arrays or LoDTensors, one per variable."""
        if self._is_eager:
            return self._set(reader, _arrays, places)
        return self._set(reader, partial(columns_of_batch, self._variables), places)

    def __call__(self) -> GeneratorLoader:
        """Return this loader, since Fluid programs write `for batch in loader()`."""
        self._check_iterable(True, "iterated")
        return self

    def __iter__(self) -> Iterator[Any]:
        """Start a pass, canceling any pass in progress."""
        self._check_iterable(True, "iterated")
        batches = map(self._shaped, self._begin(self._places))
        return map(_eager_variables, batches) if self._is_eager else batches

    def start(self) -> None:
        """Start reading."""
        self._check_iterable(False, "started")
        if self._started is not None:
            raise RuntimeError("the loader is already started; call reset() first")
        self._started = self._begin([CPUPlace()])

    @property
    def queue(self) -> Any:
        """Return the queue of prepared batches, which is empty before `start`."""
        return BatchQueue(self._capacity, 1) if self._started is None else self._started.queue

    def take_feed(self) -> dict[str, LoDTensor]:
        """Return the next batch of a started loader, for one replica. Thread-safe.

        An Executor calls this once per replica in each run. Raises EOFException at the end of the
        data, and any error from the generator.
        """
        self._check_iterable(False, "taken from")
        started = self._started
        if started is None:
            raise RuntimeError("the loader has not been started; call start() before a run")
        try:
            (columns,) = next(started)
        except StopIteration:
            raise EOFException(
                "the loader has no more batches; call reset() and start() for another pass"
            ) from None
        return dict(zip(self._names or (), columns, strict=True))

    def reset(self) -> None:
        """Stop reading; the next `start()` begins at the first batch."""
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
            if places is None and not self._is_eager:
                raise AssertionError("places must be given when the loader is iterable")
            self._places = places_of(places or CPUPlace())
        self._set_reader(resumable(reader), convert)
        return self

    def _close(self) -> None:
        super()._close()
        self._started = None

    def _check_iterable(self, wanted: bool, what: str) -> None:
        if self._iterable != wanted:
            raise AssertionError(f"a loader with iterable={self._iterable} cannot be {what}")


def _arrays(values: Iterable[Any]) -> list[LoDTensor]:
    """Return each variable's values for the batch, with the dtypes that NumPy infers."""
    columns = []
    for value in values:
        columns.append(value if isinstance(value, LoDTensor) else LoDTensor())
        if columns[-1] is not value:
            columns[-1].set(np.array(value))
    return columns


def _eager_variables(columns: list[LoDTensor]) -> list[Any]:
    from sparsefleet.fluid.dygraph.eager import to_variable

    return [to_variable(column.tensor) for column in columns]


class PyReader(GeneratorLoader):
    """A loader whose generator is set with `decorate_*`; see `fluid.io.DataLoader.from_generator`.

    >>> from sparsefleet import fluid
    >>> ads = fluid.data("ads", [None, 1], "int64")
    >>> reader = PyReader([ads], capacity=2, return_list=True)
    >>> samples = lambda: ((number,) for number in range(4))
    >>> reader.decorate_sample_generator(samples, batch_size=2, places=fluid.CPUPlace())
    >>> [ads.numpy()[:, 0].tolist() for (ads,) in reader()]
    [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
    ) -> None:
        super().__init__(feed_list, capacity, use_double_buffer, iterable, return_list)

    def decorate_sample_generator(
        self,
        sample_generator: ReaderFunction,
        batch_size: int,
        drop_last: bool = True,
        places: Place | Sequence[Place] | None = None,
    ) -> None:
        """Set a reader of samples; see `set_sample_generator`."""
        self.set_sample_generator(sample_generator, batch_size, drop_last, places)

    def decorate_sample_list_generator(
        self, reader: ReaderFunction, places: Place | Sequence[Place] | None = None
    ) -> None:
        """Set a reader of lists of samples; see `set_sample_list_generator`."""
        self.set_sample_list_generator(reader, places)

    def decorate_batch_generator(
        self, reader: ReaderFunction, places: Place | Sequence[Place] | None = None
    ) -> None:
        """Set a reader of batches; see `set_batch_generator`."""
        self.set_batch_generator(reader, places)

    # The names that fluid.layers.py_reader uses.
    decorate_paddle_reader = decorate_sample_list_generator
    decorate_tensor_provider = decorate_batch_generator
