"""Compute the predictions for waiting requests in batches.

In shapes, B is the number of examples.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError, StoreUnavailableError
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.export.manifest import Schema

__all__ = ["BatchLayout", "Batcher", "Work"]

_MOST_BYTES = 1 << 20  # bytes of merged inputs; their rows need many times as much


@dataclass(eq=False, kw_only=True, slots=True)
class Work:
    """One request: either inputs that can be batched, or a function to call on its own."""

    answer: asyncio.Future[Any]
    arrays: Arrays | None = None
    examples: int = 0
    bytes: int = 0
    key: object = None
    call: Callable[[], Any] | None = None


class Batcher:
    """Threads that compute the predictions for waiting requests in batches.

    predict: maps inputs to targets; called from several threads.
    workers: number of threads. max_batch: maximum number of examples in a batch that
        combines requests.
    wait_s: how long a batch waits for more requests.
    observe: called for each batch with its number of requests, number of examples and duration in
        seconds.

    The event loop's thread submits requests and limits how many wait.
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
        """Return whether all threads are running."""
        return all(thread.is_alive() for thread in self._threads)

    async def predict(self, arrays: Arrays) -> Arrays:
        """Return the targets for checked inputs. Canceling the call removes it from the queue."""
        key, examples = self._layout.key(arrays), self._layout.count(arrays)
        answer: asyncio.Future[Arrays] = asyncio.get_running_loop().create_future()
        size = sum(array.nbytes for array in arrays.values())
        found: Arrays = await self._wait(
            Work(answer=answer, arrays=arrays, examples=examples, bytes=size, key=key)
        )
        return found

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call the function in one of the threads and return its result."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        return await self._wait(Work(answer=answer, call=function))

    def close(self) -> None:
        """Stop the threads once the queue is empty."""
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
        """Wait for requests and return those that can be batched, or an empty list once closed."""
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
        except Exception as error:  # passed on to the requests
            answers = [error] * len(batch)
        self._observe(len(batch), sum(work.examples for work in batch), time.monotonic() - begin)
        with contextlib.suppress(RuntimeError):  # the loop has ended
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
        except StoreUnavailableError:  # affects all requests
            raise
        except Exception:  # caused by one request; the other requests must not fail
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


class BatchLayout:
    """Merges and splits the examples in a model's arrays.

    Raises ConfigError if an input or target does not have one value per example.

    >>> from sparsefleet.serving.export.manifest import InputSchema, TargetSchema
    >>> tags = InputSchema(name="tags", dtype="int64", shape=("tags",), offsets=("batch",))
    >>> score = TargetSchema(name="score", dtype="float32", shape=("batch",))
    >>> layout = BatchLayout(Schema(inputs=(tags,), targets=(score,), lookups=()))
    >>> one = {"tags.values": np.array([7, 8]), "tags.offsets": np.array([0])}
    >>> layout.merge([one, one])
    {'tags.values': array([7, 8, 7, 8]), 'tags.offsets': array([0, 2])}
    >>> layout.count(one)
    1
    """

    def __init__(self, schema: Schema) -> None:
        plain = [item for item in schema.inputs if not item.is_ragged]
        shapes = {str(item): item.shape for item in plain}
        shapes |= {str(target): target.shape for target in schema.targets}
        for text, shape in shapes.items():
            if shape[:1] != ("batch",):
                raise ConfigError(
                    f"a service needs one value per example, but {text} does not have one; export "
                    "with different feeds= or targets="
                )
        self._ragged = [item for item in schema.inputs if item.is_ragged]
        self._plain = [item.name for item in plain]

    def count(self, arrays: Arrays) -> int:
        """Return the number of examples."""
        if self._plain:
            return len(arrays[self._plain[0]])
        item = self._ragged[0]
        return len(arrays[item.arrays[1]]) - item.is_closed

    def key(self, arrays: Arrays) -> tuple[tuple[int, ...], ...]:
        """Return a key such that inputs with equal keys can be merged."""
        return tuple(array.shape[1:] for array in arrays.values())

    def merge(self, parts: Sequence[Arrays]) -> Arrays:
        """Return one set of inputs with the examples of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        merged = {name: np.concatenate([part[name] for part in parts]) for name in self._plain}
        for item in self._ragged:
            values, offsets = item.arrays
            pieces, begin = [], 0
            for at, part in enumerate(parts):
                piece: NDArray[Any] = part[offsets] + begin
                is_last = at == len(parts) - 1
                pieces.append(piece if not item.is_closed or is_last else piece[:-1])
                begin += len(part[values])
            merged[values] = np.concatenate([part[values] for part in parts])
            merged[offsets] = np.concatenate(pieces)
        return merged

    def part(self, arrays: Arrays, end: int) -> Arrays:
        """Return the first `end` examples."""
        first = {name: arrays[name][:end] for name in self._plain}
        for item in self._ragged:
            values, offsets = item.arrays
            ends: NDArray[Any] = arrays[offsets]
            if not item.is_closed:
                ends = np.append(ends, len(arrays[values]))
            first[values] = arrays[values][: ends[end]]
            first[offsets] = ends[: end + item.is_closed]
        return first

    def split(self, targets: Arrays, counts: Sequence[int]) -> list[Arrays]:
        """Split the targets into parts; `counts` contains the number of examples in each part."""
        ends = np.cumsum(counts)[:-1]
        pieces = {name: np.split(array, ends) for name, array in targets.items()}
        return [{name: pieces[name][at] for name in targets} for at in range(len(counts))]
