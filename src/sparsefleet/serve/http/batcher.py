"""Requests of one model, predicted together when several wait."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparsefleet.errors import StoreUnavailableError
from sparsefleet.export.feeds import Arrays
from sparsefleet.serve.http.merging import BatchLayout

__all__ = ["Batcher", "Work"]

_MOST_BYTES = 1 << 20  # of inputs put together: rows take many times as much


@dataclass(eq=False, kw_only=True, slots=True)
class Work:
    """One request's share: inputs to predict, or a call to make by itself."""

    answer: asyncio.Future[Any]
    arrays: Arrays | None = None
    examples: int = 0
    bytes: int = 0
    key: object = None
    call: Callable[[], Any] | None = None


class Batcher:
    """Threads that take what waits, as one batch, and predict it.

    predict: inputs to targets; called by several threads.
    workers: threads. max_batch: examples of a batch that is made of several requests.
    wait_s: how long a batch waits for more.
    observe: told the requests, examples and seconds of each batch.

    Who submits is the thread of the event loop, and bounds how much waits.
    """

    def __init__(
        self,
        predict: Callable[[Arrays], Arrays],
        layout: BatchLayout,
        *,
        workers: int = 1,
        max_batch: int = 1024,
        wait_s: float = 0.0,
        observe: Callable[[int, int, float], None] = lambda *_: None,
    ) -> None:
        self._predict = predict
        self._layout = layout
        self.max_batch = max_batch
        self._wait_s = wait_s
        self._observe = observe
        self._queue: deque[Work] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"predict-{index}", daemon=True)
            for index in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether all its threads run."""
        return all(thread.is_alive() for thread in self._threads)

    async def predict(self, arrays: Arrays) -> Arrays:
        """The targets of checked inputs. A request that is given up waits no longer."""
        key, examples = self._layout.key(arrays), self._layout.count(arrays)
        answer: asyncio.Future[Arrays] = asyncio.get_running_loop().create_future()
        size = sum(array.nbytes for array in arrays.values())
        found: Arrays = await self._wait(
            Work(answer=answer, arrays=arrays, examples=examples, bytes=size, key=key)
        )
        return found

    async def call(self, function: Callable[[], Any]) -> Any:
        """What the function gives, called by one of the threads."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        return await self._wait(Work(answer=answer, call=function))

    def close(self) -> None:
        """Ends the threads when nothing waits any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    async def _wait(self, work: Work) -> Any:
        with self._changed:
            self._queue.append(work)
            self._changed.notify()
        try:
            return await work.answer
        except asyncio.CancelledError:
            with self._changed, contextlib.suppress(ValueError):
                self._queue.remove(work)
            raise

    def _serve(self) -> None:
        while batch := self._next_batch():
            self._carry_out(batch)

    def _next_batch(self) -> list[Work]:
        """What waits, as far as it goes together; waits for something. Empty at the end."""
        with self._changed:
            while not self._queue:
                if self._is_closed:
                    return []
                self._changed.wait()
            batch = [self._queue.popleft()]
            end = time.monotonic() + self._wait_s
            self._fill(batch)
            while self._has_room(batch) and not self._queue and not self._is_closed:
                left = end - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
                self._fill(batch)
            return batch

    def _has_room(self, batch: list[Work]) -> bool:
        return batch[0].call is None and sum(work.examples for work in batch) < self.max_batch

    def _fill(self, batch: list[Work]) -> None:
        first = batch[0]
        total = sum(work.examples for work in batch)
        size = sum(work.bytes for work in batch)
        while self._queue and first.call is None:
            candidate = self._queue[0]
            total, size = total + candidate.examples, size + candidate.bytes
            is_too_much = total > self.max_batch or size > _MOST_BYTES
            if candidate.call or candidate.key != first.key or is_too_much:
                return
            batch.append(self._queue.popleft())

    def _carry_out(self, batch: list[Work]) -> None:
        begin = time.monotonic()
        try:
            answers = self._answers(batch)
        except Exception as error:  # at the edge of a thread: the requests are told
            answers = [error] * len(batch)
        self._observe(len(batch), sum(work.examples for work in batch), time.monotonic() - begin)
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
            loop = batch[0].answer.get_loop()
            loop.call_soon_threadsafe(_hand_over, batch, answers)

    def _answers(self, batch: list[Work]) -> list[Any]:
        call = batch[0].call
        if call is not None:
            return [call()]
        parts = [work.arrays for work in batch if work.arrays is not None]
        if len(parts) == 1:
            return [self._predict(parts[0])]
        try:
            found = self._predict(self._layout.merge(parts))
        except StoreUnavailableError:  # of all of them
            raise
        except Exception:  # of one of them: the others shall not be told so
            return [self._answer_alone(part) for part in parts]
        return list(self._layout.split(found, [work.examples for work in batch]))

    def _answer_alone(self, arrays: Arrays) -> Any:
        try:
            return self._predict(arrays)
        except Exception as error:
            return error


def _hand_over(batch: list[Work], answers: list[Any]) -> None:
    for work, answer in zip(batch, answers, strict=True):
        if work.answer.done():
            continue
        if isinstance(answer, Exception):
            work.answer.set_exception(answer)
        else:
            work.answer.set_result(answer)
