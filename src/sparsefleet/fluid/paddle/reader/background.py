"""Threads that read or map a reader's items ahead of the consumer."""

from __future__ import annotations

import logging
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from sparsefleet.data.batch_queue import BatchQueue
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.paddle.reader.resumable import ReaderFunction, ResumableReader, resumable

__all__ = ["Background", "WAIT_S", "check_count", "close_iterator", "end_threads", "xmap_readers"]


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


_WHAT = "the reader or the mapper of xmap_readers()"


def xmap_readers(
    mapper: Callable[[Any], Any],
    reader: ReaderFunction,
    process_num: int,
    buffer_size: int,
    order: bool = False,
    *,
    wait_s: float = WAIT_S,
) -> ResumableReader:
    """Apply `mapper` to each item in `process_num` threads, up to `buffer_size` items ahead.

    order: return results in the order of the items instead of as they become ready.
    wait_s: seconds to wait for a result before raising DataError.

    >>> list(xmap_readers(lambda n: n * n, lambda: iter(range(4)), 2, 8, order=True)())
    [0, 1, 4, 9]
    """
    return _ParallelMapped(
        mapper, reader, process_num, buffer_size=buffer_size, order=order, wait_s=wait_s
    )


class _Task(NamedTuple):
    """An item being mapped: its number, its position, and its value or result."""

    number: int
    position: Any
    value: Any
    error: BaseException | None = None
    was_taken: bool = False
    """Whether the item was already returned when the state was taken. If so, only its position
    is used.
    """


class _ParallelMapped(ResumableReader):
    """Maps items in threads.

    A position is the source position up to which all items were returned, plus any later items
    that were already returned.
    """

    def __init__(
        self,
        mapper: Callable[[Any], Any],
        reader: ReaderFunction,
        process_num: int,
        *,
        buffer_size: int,
        order: bool,
        wait_s: float,
    ) -> None:
        super().__init__()
        self._mapper = mapper
        self._process_num = check_count("xmap_readers: process_num", process_num)
        self._window = self._process_num + check_count("xmap_readers: buffer_size", buffer_size)
        self._order = order
        self._wait_s = wait_s
        self.kind = "xmap_readers"
        self.sources = (resumable(reader),)

    def walk(self, pass_number: int, position: Any) -> Iterator[tuple[Any, Any]]:
        before, had = position or (None, [])
        team = _MapTeam(
            self._mapper,
            _tasks_of(self.sources[0].walk(pass_number, before), set(had)),
            self._process_num,
            window=self._window,
            wait_s=self._wait_s,
        )
        given = _GivenOut(before, had)
        try:
            for task in _in_order(team.results()) if self._order else team.results():
                if task.error is not None:
                    raise task.error
                team.admit_next()
                position = given.add(task)
                if not task.was_taken:
                    yield task.value, position
        finally:
            team.end()


class _GivenOut:
    """Tracks which items were returned when results are not in the order of the items."""

    def __init__(self, before: Any, had: list[int]) -> None:
        self._before = before
        self._low = 0
        self._above: dict[int, Any] = dict.fromkeys(had)  # None until seen again

    def add(self, task: _Task) -> list[Any]:
        """Record that the result of `task` was returned; return the position after it."""
        self._above[task.number] = task.position
        while self._above.get(self._low) is not None:
            self._before = self._above.pop(self._low)
            self._low += 1
        return [self._before, [number - self._low for number in sorted(self._above)]]


class _MapTeam:
    """One thread that reads and several threads that map, with up to `window` items in flight."""

    def __init__(
        self,
        mapper: Callable[[Any], Any],
        tasks: Iterator[_Task],
        num_threads: int,
        *,
        window: int,
        wait_s: float,
    ) -> None:
        self._mapper = mapper
        self._tasks = tasks
        self._wait_s = wait_s
        self._room = threading.Semaphore(window)
        self._todo: SimpleQueue[_Task | None] = SimpleQueue()
        self._done: BatchQueue[_Task] = BatchQueue(
            window, num_threads, f"(wait_s): {_WHAT} is stuck or too slow"
        )
        targets = [self._read] + [self._map] * num_threads
        self._threads = [
            threading.Thread(target=target, name="sparsefleet-xmap", daemon=True)
            for target in targets
        ]
        for thread in self._threads:
            thread.start()

    def results(self) -> Iterator[_Task]:
        """Yield results in the order in which they become ready."""
        while (task := self._done.take(self._wait_s)) is not None:
            yield task

    def admit_next(self) -> None:
        """Record that a result was consumed, so that another item can be read."""
        self._room.release()

    def end(self) -> None:
        """Stop the threads."""
        self._done.close()
        self._room.release()
        self._dismiss()
        end_threads(self._threads, self._done, _WHAT)

    def _dismiss(self) -> None:
        for _ in self._threads[1:]:
            self._todo.put(None)

    def _read(self) -> None:
        for task in self._tasks:
            self._room.acquire()  # `end` releases the semaphore
            if self._done.is_stopped:
                break
            self._todo.put(task)
        close_iterator(self._tasks)
        self._dismiss()

    def _map(self) -> None:
        while (task := self._todo.get()) is not None and not self._done.is_stopped:
            if task.error is None and not task.was_taken:
                try:
                    task = task._replace(value=self._mapper(task.value))
                except BaseException as error:  # thread boundary: raised where results are taken
                    task = task._replace(error=error)
            self._done.put(task)
        self._done.end_producer()


def _tasks_of(walk: Iterator[tuple[Any, Any]], had: set[int]) -> Iterator[_Task]:
    """Yield the items as tasks. An error, if any, is the last task."""
    number = -1
    try:
        for number, (item, position) in enumerate(walk):
            yield _Task(number, position, item, was_taken=number in had)
    except GeneratorExit:
        raise
    except BaseException as error:  # as above
        yield _Task(number + 1, None, None, error)


def _in_order(tasks: Iterator[_Task]) -> Iterator[_Task]:
    held: dict[int, _Task] = {}
    wanted = 0
    for task in tasks:
        held[task.number] = task
        while wanted in held:
            yield held.pop(wanted)
            wanted += 1
