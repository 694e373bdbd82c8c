"""Apply a function to a reader's items in several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, NamedTuple

from sparsefleet.data.batch_queue import BatchQueue
from sparsefleet.fluid.paddle.reader.background import (
    WAIT_S,
    check_count,
    close_iterator,
    end_threads,
)
from sparsefleet.fluid.paddle.reader.resumable import ReaderFunction, ResumableReader, resumable

__all__ = ["xmap_readers"]

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
