"""Requests that wait together are predicted together; each gets its own answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sparsefleet.errors import ConfigError, CorruptFileError, FeedError
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.export.manifest import InputSchema, Schema, TargetSchema
from sparsefleet.serving.http.batcher import Batcher, BatchLayout

SCORE = TargetSchema(name="score", dtype="int64", shape=("batch",))
LAYOUT = BatchLayout(
    Schema(
        inputs=(InputSchema(name="x", dtype="int64", shape=("batch", "width")),),
        targets=(SCORE,),
        lookups=(),
    )
)
WAIT_S = 30.0


class Counting:
    """Sums each example; blocks the first batch until released."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.go = threading.Event()
        self.has_begun = threading.Event()

    def __call__(self, arrays: Arrays) -> Arrays:
        self.sizes.append(len(arrays["x"]))
        self.has_begun.set()
        assert self.go.wait(WAIT_S)
        if (arrays["x"] < 0).any():
            raise FeedError("negative")
        return {"score": arrays["x"].sum(1)}


def example(*values: int) -> Arrays:
    return {"x": np.array([values])}


@pytest.fixture
def made() -> Iterator[Callable[..., tuple[Counting, Batcher]]]:
    batchers: list[tuple[Counting, Batcher]] = []

    def make(**settings: Any) -> tuple[Counting, Batcher]:
        predict = Counting()
        batchers.append((predict, Batcher(predict, LAYOUT, **settings)))
        return batchers[-1]

    yield make
    for predict, batcher in batchers:
        predict.go.set()
        batcher.close()


async def begun(predict: Counting, batcher: Batcher) -> asyncio.Task[Arrays]:
    """A request that is being computed, so that all others wait."""
    first = asyncio.create_task(batcher.predict(example(0, 0)))
    assert await asyncio.to_thread(predict.has_begun.wait, WAIT_S)
    return first


async def waiting(batcher: Batcher, *works: Arrays) -> list[asyncio.Task[Arrays]]:
    tasks = [asyncio.create_task(batcher.predict(work)) for work in works]
    await asyncio.sleep(0)  # each has put its request into the queue
    return tasks


def test_requests_that_wait_are_one_batch(made: Any) -> None:
    predict, batcher = made()

    async def run() -> None:
        first = await begun(predict, batcher)
        tasks = await waiting(batcher, *(example(n, n) for n in range(5)))
        predict.go.set()
        await first
        assert [int((await task)["score"][0]) for task in tasks] == [0, 2, 4, 6, 8]

    asyncio.run(run())
    assert predict.sizes == [1, 5]


def test_batches_hold_no_more_than_they_may_and_only_equal_widths(made: Any) -> None:
    predict, batcher = made(max_batch=2)

    async def run() -> None:
        first = await begun(predict, batcher)
        works = [example(1, 1), example(2, 2), example(3, 3), example(4, 4, 4), example(5, 5)]
        tasks = await waiting(batcher, *works)
        predict.go.set()
        await first
        assert [int((await task)["score"][0]) for task in tasks] == [2, 4, 6, 12, 10]

    asyncio.run(run())
    assert predict.sizes == [1, 2, 1, 1, 1]


def test_large_request_is_one_batch_by_itself(made: Any) -> None:
    predict, batcher = made(max_batch=2)
    predict.go.set()
    found = asyncio.run(batcher.predict({"x": np.ones((7, 2), np.int64)}))
    assert found["score"].tolist() == [2] * 7
    assert predict.sizes == [7]


def test_bad_request_fails_alone(made: Any) -> None:
    predict, batcher = made()

    async def run() -> None:
        first = await begun(predict, batcher)
        good, bad, other = await waiting(batcher, example(1, 1), example(-1, 1), example(2, 2))
        predict.go.set()
        await first
        assert (await good)["score"].tolist() == [2]
        assert (await other)["score"].tolist() == [4]
        with pytest.raises(FeedError, match="negative"):
            await bad

    asyncio.run(run())


def test_request_that_is_given_up_is_not_computed(made: Any) -> None:
    predict, batcher = made()

    async def run() -> None:
        first = await begun(predict, batcher)
        given_up, kept = await waiting(batcher, example(1, 1), example(2, 2))
        given_up.cancel()
        await asyncio.wait([given_up])
        predict.go.set()
        await first
        assert (await kept)["score"].tolist() == [4]

    asyncio.run(run())
    assert predict.sizes == [1, 1]


def test_calls_are_made_one_by_one_and_their_errors_are_reported(made: Any) -> None:
    predict, batcher = made()

    def fail() -> None:
        raise ZeroDivisionError

    async def run() -> None:
        first = await begun(predict, batcher)
        tasks = await waiting(batcher, example(1, 1))
        called = asyncio.create_task(batcher.call(lambda: 7))
        failed = asyncio.create_task(batcher.call(fail))
        predict.go.set()
        await first
        assert await called == 7
        with pytest.raises(ZeroDivisionError):
            await failed
        assert (await tasks[0])["score"].tolist() == [2]

    asyncio.run(run())
    assert batcher.is_alive


def test_what_waits_is_answered_before_the_threads_end(made: Any) -> None:
    predict, batcher = made()

    async def run() -> None:
        first = await begun(predict, batcher)
        [task] = await waiting(batcher, example(3, 3))
        closing = asyncio.create_task(asyncio.to_thread(batcher.close))
        predict.go.set()
        await first
        assert (await task)["score"].tolist() == [6]
        await closing

    asyncio.run(run())
    assert not batcher.is_alive


def test_model_without_a_value_for_each_example_is_refused() -> None:
    whole = TargetSchema(name="loss", dtype="float32", shape=())
    with pytest.raises(ConfigError, match=r"loss: float32\[\] does not have one"):
        BatchLayout(Schema(inputs=(), targets=(whole,), lookups=()))


def test_ragged_inputs_are_merged_and_cut() -> None:
    layout = BatchLayout(
        Schema(
            inputs=(
                InputSchema(name="a", dtype="int64", shape=("a",), offsets=("batch",)),
                InputSchema(name="b", dtype="int64", shape=("b",), offsets=("batch + 1",)),
            ),
            targets=(SCORE,),
            lookups=(),
        )
    )

    def part(a: list[int], starts: list[int], b: list[int], ends: list[int]) -> Arrays:
        names = ("a.values", "a.offsets", "b.values", "b.offsets")
        return {
            name: np.array(x, np.int64) for name, x in zip(names, (a, starts, b, ends), strict=True)
        }

    parts = [
        part([1, 2], [0, 2], [], [0, 0, 0]),
        part([], [], [], [0]),
        part([3], [0], [4, 5], [0, 2]),
    ]
    merged = layout.merge(parts)
    assert layout.count(merged) == 3
    assert {name: array.tolist() for name, array in merged.items()} == {
        "a.values": [1, 2, 3],
        "a.offsets": [0, 2, 2],
        "b.values": [4, 5],
        "b.offsets": [0, 0, 0, 2],
    }
    first = layout.part(merged, 1)
    assert {name: array.tolist() for name, array in first.items()} == {
        "a.values": [1, 2],
        "a.offsets": [0],
        "b.values": [],
        "b.offsets": [0, 0],
    }


def test_an_error_of_any_kind_is_reported_only_to_its_own_request(made: Any) -> None:
    async def test() -> None:
        predict, batcher = made()
        first = await begun(predict, batcher)

        def fail(arrays: Arrays) -> Arrays:
            if (arrays["x"] == 13).any():
                raise CorruptFileError("the row of key 13 has 3 bytes")
            return {"score": arrays["x"].sum(1)}

        batcher._predict = fail
        good, bad = await waiting(batcher, example(1, 2), example(13, 0))
        predict.go.set()
        assert (await good)["score"] == 3
        with pytest.raises(CorruptFileError, match="key 13"):
            await bad
        await first

    asyncio.run(test())


def test_requests_with_many_values_are_not_put_together(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsefleet.serving.http.batcher._MOST_BYTES", 48)

    async def test() -> None:
        predict, batcher = made()
        first = await begun(predict, batcher)
        tasks = await waiting(batcher, *(example(n, n) for n in range(4)))  # of 16 bytes each
        predict.go.set()
        found = await asyncio.gather(first, *tasks)
        assert [answer["score"].tolist() for answer in found] == [[0], [0], [2], [4], [6]]
        assert predict.sizes == [1, 3, 1]

    asyncio.run(test())
