"""Where batches come from: one iterator a pass, shared by all training threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from sparsefleet.errors import ConfigError
from sparsefleet.train.batch import Batch, as_batch
from sparsefleet.train.data_position import (
    DataPosition,
    PassStart,
    StatefulData,
    skip_batches,
)
from sparsefleet.train.random_state import random_state, set_random_state
from sparsefleet.train.reading import ReadingWatch

__all__ = ["BatchFeed", "BatchSource", "Data"]

_log = logging.getLogger("sparsefleet.train")

Data = Iterable[Any] | Callable[[], Iterable[Any]]
"""Batches: something that can be iterated once a pass, or a function that gives such a thing."""


class BatchFeed:
    """The batches of one pass. Thread-safe: each is given to one thread.

    >>> feed = BatchFeed(iter([("first", 1), ("second", 0)]), labelled=True)
    >>> feed.take().number, feed.take().number, feed.take()
    (1, 2, None)
    """

    def __init__(
        self,
        batches: Iterator[Any],
        *,
        labelled: bool,
        data: object = None,
        before: DataPosition | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        """data: what can tell its position, if anything can. before: where the pass began.

        close: ends the reading behind `batches`, where that was begun for this pass.
        """
        self._batches = batches
        self._close = close
        self._labelled = labelled
        self.data = data
        """What the batches come from, where that is known."""
        self._before = before or DataPosition()
        self._lock = threading.Lock()
        self._taken = 0
        self._ended = False

    @property
    def taken(self) -> int:
        """Batches given out so far."""
        return self._taken

    def take(self) -> Batch | None:
        """The next batch; None at the end or after `stop`."""
        with self._lock:
            if self._ended:
                return None
            try:
                raw = next(self._batches)
            except StopIteration:
                self._ended = True
                return None
            except BaseException:
                self._ended = True  # an iterator that raised has nothing more to say
                raise
            self._taken += 1
            number = self._taken
        return as_batch(raw, number, labelled=self._labelled)

    @property
    def is_through(self) -> bool:
        """Whether all batches have been given out."""
        return self._ended

    def position(self) -> DataPosition:
        """What was given out, in this pass and before it; called while nobody takes."""
        before = self._before
        state = before.state
        if isinstance(self.data, StatefulData):
            # At the end of a pass, state_dict() is that of the next one.
            at_end = getattr(self.data, "finished_state_dict", self.data.state_dict)
            state = at_end() if self._ended else self.data.state_dict()
        return replace(before, batches=before.batches + self._taken, state=state)

    def stop(self) -> None:
        """No more batches for anybody; does not wait for one that is being read."""
        self._ended = True

    def let_go(self) -> None:
        """Ends the reading behind the batches: threads, processes, files."""
        self.stop()
        self._batches = iter(())
        close, self._close = self._close, None
        if close is not None:
            try:
                close()
            except Exception as error:  # of anybody's data; what is being raised says more
                _log.warning("the data could not be closed: %r", error)


class BatchSource:
    """Data that can be gone through `passes` times; refuses data that cannot."""

    def __init__(self, data: Data, *, passes: int = 1, labelled: bool = True) -> None:
        self._labelled = labelled
        self._data = data
        self._open: Callable[[], Iterable[Any]]
        if isinstance(data, (Tensor, np.ndarray, str, bytes, Mapping)):
            raise ConfigError(
                f"data is a {type(data).__name__}, wanted an iterable of batches "
                "(inputs, labels), or a function that returns one"
            )
        if isinstance(data, Iterable):
            if passes > 1 and isinstance(data, Iterator):
                raise ConfigError(
                    f"data is a {type(data).__name__}, which can be gone through only once, but "
                    f"there are {passes} epochs: give a list or a DataLoader, or the function "
                    "that makes the iterator"
                )
            self._open = data.__iter__
        elif callable(data):
            self._open = data
        else:
            raise ConfigError(
                f"data is a {type(data).__name__}, wanted an iterable of batches or a function "
                "that returns one"
            )
        self.reading = ReadingWatch(data)
        """What the data says of its reading."""
        self.num_batches = _length_of(data)
        """Batches of a pass, where the data knows."""

    def begin_pass(self, start: PassStart | None = None) -> BatchFeed:
        """The batches once more, from the first, or from `start`."""
        start = None if start is None else start.for_data(self._data)
        if start is not None and start.is_through:
            return BatchFeed(iter(()), labelled=self._labelled, before=start.own())
        own = None if start is None else start.own()
        is_loaded = start is not None and start.load_into(self._data)
        if not is_loaded and own is not None and own.random_at_start is not None:
            set_random_state(own.random_at_start)
        before = DataPosition(random_at_start=random_state())
        batches = self._open()
        if not isinstance(batches, Iterable):
            raise ConfigError(
                f"the data function returned a {type(batches).__name__}, wanted an iterator"
            )
        data = self._data if isinstance(self._data, StatefulData) else batches
        if start is not None and not is_loaded:
            is_loaded = start.load_into(batches)
        iterator = iter(batches)
        if start is not None and not is_loaded:
            if own is not None:
                skip_batches(iterator, own.batches)
                before = replace(before, batches=own.batches)
            else:
                start.tell_beginning_anew()
        close = None if iterator is self._data else getattr(iterator, "close", None)
        return BatchFeed(
            iterator,
            labelled=self._labelled,
            data=data,
            before=before,
            close=close if callable(close) else None,
        )


def _length_of(data: Any) -> int | None:
    try:
        return len(data)
    except (TypeError, NotImplementedError):  # a DataLoader over a stream raises TypeError, too
        return None
