"""An iterator that a thread of its own keeps ahead."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any, TypeVar

from sparsefleet.data.batch_queue import BatchQueue

__all__ = ["Background", "WAIT_S", "close_iterator", "end_threads"]

T = TypeVar("T")

WAIT_S = 600.0
"""How long an item may take to come before that is an error."""

_END_S = 5.0  # for a thread to leave the function it is in

_log = logging.getLogger("sparsefleet.reader")


class Background(Iterator[T]):
    """What `begin()` gives, up to `capacity` items of it in advance, none of them None.

    An error of `begin()` or of its iterator comes after the items before it, with its traceback.
    The thread ends with this: at the end of the items, by `close()`, or when nobody holds it.

    what: whose items these are, for messages.
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
        advice = f"(wait_s): {what} is stuck, or that slow"
        self.queue: BatchQueue[T] = BatchQueue(capacity, 1, advice)
        """Between the thread and whoever takes items; counts how long either waits."""
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
        """Ends the thread; no more items come. Thread-safe: whoever waits for one gets the end."""
        self._end()


def close_iterator(items: Any) -> None:
    """Lets a generator run its clean-up now."""
    if hasattr(items, "close"):
        items.close()


def end_threads(threads: list[threading.Thread], queue: BatchQueue[Any], what: str) -> None:
    """Closes the queue that threads write to and waits for them to notice."""
    queue.close()
    deadline = monotonic() + _END_S
    for thread in threads:
        if thread is threading.current_thread() or thread.ident is None:
            continue
        thread.join(max(0.0, deadline - monotonic()))
        if thread.is_alive():
            _log.warning("%s has not come back for %g s: its thread is left behind", what, _END_S)


def _produce(begin: Callable[[], Iterable[T]], queue: BatchQueue[T], what: str) -> None:
    try:
        items = iter(begin())
        for item in items:
            if not queue.put(item):
                break
        close_iterator(items)
    except BaseException as error:  # the thread's edge: raised where items are taken
        if queue.is_stopped:
            _log.warning("%s failed after its last item was taken: %r", what, error)
        queue.fail(error)
    else:
        queue.end_producer()
