"""An iterator whose items a background thread reads ahead of the consumer."""

from __future__ import annotations

import logging
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any, TypeVar

from sparsefleet.data.batch_queue import BatchQueue
from sparsefleet.errors import ConfigError

__all__ = ["Background", "WAIT_S", "check_count", "close_iterator", "end_threads"]


def check_count(name: str, value: object, low: int = 1) -> int:
    """Return `value` as an int. If it is less than `low`, raise a ConfigError about `name`.

    A float is truncated, because old scripts divide sizes with `/`, which Python 2 truncated.
    """
    try:
        count = int(value) if isinstance(value, float) else operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):  # also NaN and infinity
        count = low - 1
    if count < low or isinstance(value, bool):
        raise ConfigError(f"{name} must be an int >= {low}, got {value!r}")
    return count


T = TypeVar("T")

WAIT_S = 600.0
"""Seconds to wait for an item before raising an error."""

_END_S = 5.0  # time for a thread to return from its current function

_log = logging.getLogger("sparsefleet.fluid.paddle.reader")


class Background(Iterator[T]):
    """Iterates over `begin()` with up to `capacity` items read ahead; items must not be None.

    An error from `begin()` or its iterator is raised after all items that precede it, with its
    traceback. The thread stops at the end of the items, on `close()`, or when this object is
    garbage-collected.

    what: the name of the items' source, for messages.
    """

    def __init__(
        self,
        begin: Callable[[], Iterable[T]],
        capacity: int,
        *,
        what: str,
        wait_s: float = WAIT_S,
    ) -> None:
        self._wait_s = wait_s
        advice = f"(wait_s): {what} is stuck or too slow"
        self.queue: BatchQueue[T] = BatchQueue(capacity, 1, advice)
        """The queue between the thread and the consumer, which measures how long each one waits."""
        thread = threading.Thread(
            target=_produce, args=(begin, self.queue, what), name="sparsefleet-ahead", daemon=True
        )
        self._end = weakref.finalize(self, end_threads, [thread], self.queue, what)
        thread.start()

    def __next__(self) -> T:
        try:
            item = self.queue.take(self._wait_s)
        except BaseException:
            self.close()
            raise
        if item is None:
            self.close()
            raise StopIteration
        return item

    def close(self) -> None:
        """Stop the thread and return no more items.

        Thread-safe; callers that are waiting for an item return.
        """
        self._end()


def close_iterator(items: Any) -> None:
    """Close the iterator if it is a generator, so that its clean-up runs now."""
    if hasattr(items, "close"):
        items.close()


def end_threads(threads: list[threading.Thread], queue: BatchQueue[Any], what: str) -> None:
    """Close the queue that threads write to, and wait for them to notice."""
    queue.close()
    deadline = monotonic() + _END_S
    for thread in threads:
        if thread is threading.current_thread() or thread.ident is None:
            continue
        thread.join(max(0.0, deadline - monotonic()))
        if thread.is_alive():
            _log.warning("%s has not returned for %g s; abandoning its thread", what, _END_S)


def _produce(begin: Callable[[], Iterable[T]], queue: BatchQueue[T], what: str) -> None:
    try:
        items = iter(begin())
        for item in items:
            if not queue.put(item):
                break
        close_iterator(items)
    except BaseException as error:  # thread boundary: raised where items are taken
        if queue.is_stopped:
            _log.warning("%s failed after its last item was taken: %r", what, error)
        queue.fail(error)
    else:
        queue.end_producer()
