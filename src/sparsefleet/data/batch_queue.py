"""The queue of batches between reading threads and training threads."""

from __future__ import annotations

import threading
from collections import deque
from time import monotonic
from typing import Generic, TypeVar

from sparsefleet.errors import DataError

T = TypeVar("T")

_FILES_STUCK = (
    "(ReaderConfig.wait_s): a file system or pipe command may hang, or reading is too slow"
)


class BatchQueue(Generic[T]):
    """A queue of up to `capacity` batches. Thread-safe, with any number of threads on each side.

    The queue ends when all producers are done or one of them has failed; batches that it still
    holds are handed out first.

    advice: appended to the error message raised when no batch arrives in time.

    >>> queue = BatchQueue(capacity=2, num_producers=1)
    >>> queue.put("batch"), queue.end_producer()
    (True, None)
    >>> queue.take(wait_s=1.0), queue.take(wait_s=1.0)
    ('batch', None)
    """

    def __init__(self, capacity: int, num_producers: int, advice: str = _FILES_STUCK) -> None:
        self._advice = advice
        self._capacity = capacity
        self._producers = num_producers
        self._batches: deque[T] = deque()
        self._lock = threading.Lock()
        self._has_room = threading.Condition(self._lock)
        self._has_news = threading.Condition(self._lock)
        self._error: BaseException | None = None
        self._closed = False
        self.producers_blocked_s = 0.0
        self.consumers_blocked_s = 0.0

    def size(self) -> int:
        """Return the number of batches waiting to be taken."""
        return len(self._batches)

    @property
    def is_stopped(self) -> bool:
        """Whether producers can stop because nobody will take more batches."""
        return self._closed or self._error is not None

    def put(self, batch: T) -> bool:
        """Add a batch once there is room; return False if the queue has stopped."""
        with self._lock:
            begun = monotonic()
            while len(self._batches) >= self._capacity and not self.is_stopped:
                self._has_room.wait()  # until `take`, `close` or `fail` wakes this thread
            self.producers_blocked_s += monotonic() - begun
            if self.is_stopped:
                return False
            self._batches.append(batch)
            self._has_news.notify()
            return True

    def take(self, wait_s: float) -> T | None:
        """Return the next batch, or None at the end of the data. Re-raises a producer's error."""
        with self._lock:
            begun = monotonic()
            deadline = begun + wait_s
            while not self._batches and self._producers > 0 and not self.is_stopped:
                left_s = deadline - monotonic()
                if left_s <= 0:
                    raise DataError(f"no batch arrived within {wait_s:g} s {self._advice}")
                self._has_news.wait(left_s)
            self.consumers_blocked_s += monotonic() - begun
            if self._closed:
                return None
            if self._batches:
                batch = self._batches.popleft()
                self._has_room.notify()
                return batch
            if self._error is not None:
                raise self._error
            return None

    def end_producer(self) -> None:
        """Report that one producer has no more batches."""
        with self._lock:
            self._producers -= 1
            self._has_news.notify_all()

    def fail(self, error: BaseException) -> None:
        """Report that a producer has failed; only the first error is kept."""
        with self._lock:
            if self._error is None:
                self._error = error
            self._has_news.notify_all()
            self._has_room.notify_all()

    def close(self) -> None:
        """Drop all batches and wake all waiting threads."""
        with self._lock:
            self._closed = True
            self._batches.clear()
            self._has_news.notify_all()
            self._has_room.notify_all()
