from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sparsefleet.engine.batch_source import BatchFeed, BatchSource
from sparsefleet.engine.batch_supply import PrefetchingSupply
from sparsefleet.engine.clock import StepClock
from sparsefleet.engine.workload import Batch
from sparsefleet.errors import ConfigError

BATCHES = [(torch.tensor([number]), torch.zeros(1)) for number in range(5)]


def as_batch(raw: Any, number: int) -> Batch:
    inputs, labels = raw
    return Batch(number, inputs, labels, len(labels))


def drain(feed: BatchFeed) -> list[int]:
    found = []
    while (batch := feed.take()) is not None:
        found.append(int(batch.inputs[0]))
    return found


def test_list_is_gone_through_once_per_pass() -> None:
    source = BatchSource(BATCHES, as_batch, passes=2)
    assert source.num_batches == 5
    assert drain(source.begin_pass()) == drain(source.begin_pass()) == [0, 1, 2, 3, 4]


def test_function_is_called_for_each_pass() -> None:
    calls = []

    def batches() -> Iterator[Any]:
        calls.append(1)
        yield from BATCHES[: len(calls)]

    source = BatchSource(batches, as_batch, passes=2)
    assert source.num_batches is None
    assert drain(source.begin_pass()) == [0]
    assert drain(source.begin_pass()) == [0, 1]


def test_iterator_serves_one_pass_and_is_refused_for_more() -> None:
    assert drain(BatchSource(iter(BATCHES), as_batch, passes=1).begin_pass()) == [0, 1, 2, 3, 4]
    with pytest.raises(ConfigError, match="list_iterator, which can be read only once.*3"):
        BatchSource(iter(BATCHES), as_batch, passes=3)


@pytest.mark.parametrize("data", [torch.zeros(3), np.zeros(3), {"a": 1}, "path", 7, None])
def test_values_that_are_not_batches_are_refused(data: Any) -> None:
    with pytest.raises(ConfigError, match=f"data must be an iterable.*got a {type(data).__name__}"):
        BatchSource(data, as_batch)


def test_function_that_gives_no_iterator_is_refused() -> None:
    with pytest.raises(ConfigError, match="must return an iterator, got a int"):
        BatchSource(lambda: 7, as_batch).begin_pass()  # type: ignore[arg-type, return-value]


def test_threads_share_the_batches_of_a_generator() -> None:
    def batches() -> Iterator[Any]:  # "generator already executing" unless taken in turn
        for number in range(400):
            yield torch.tensor([number]), torch.zeros(1)

    feed = BatchSource(batches, as_batch).begin_pass()
    found: list[list[int]] = [[], [], []]
    threads = [
        threading.Thread(target=lambda into=into: into.extend(drain(feed))) for into in found
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(found[0] + found[1] + found[2]) == list(range(400))
    assert feed.taken == 400


def test_data_that_raises_is_at_its_end_for_the_others() -> None:
    def batches() -> Iterator[Any]:
        yield BATCHES[0]
        raise OSError("disk gone")

    feed = BatchSource(batches, as_batch).begin_pass()
    assert feed.take() is not None
    with pytest.raises(OSError, match="disk gone"):
        feed.take()
    assert feed.take() is None


def test_prefetching_gives_batches_in_order_with_their_rows() -> None:
    feed = BatchSource(BATCHES, as_batch).begin_pass()
    supply = PrefetchingSupply(
        feed, StepClock(), lambda inputs: int(inputs[0]) * 10, threading.Event()
    )
    found = []
    while (supplied := supply.take()) is not None:
        found.append((supplied.batch.number, supplied.pulled))
    assert found == [(1, 0), (2, 10), (3, 20), (4, 30), (5, 40)]
    assert supply.take() is None


def test_prefetching_reads_one_batch_ahead_and_no_more() -> None:
    read = threading.Semaphore(0)

    def batches() -> Iterator[Any]:
        for batch in BATCHES:
            read.release()
            yield batch

    feed = BatchSource(batches, as_batch).begin_pass()
    supply = PrefetchingSupply(feed, StepClock(), lambda _: None, threading.Event())
    assert read.acquire(timeout=30)
    supply.take()
    assert read.acquire(timeout=30)
    supply.close()
    assert feed.taken <= 2


def test_prefetching_raises_what_reading_raised() -> None:
    def batches() -> Iterator[Any]:
        yield BATCHES[0]
        raise OSError("disk gone")

    supply = PrefetchingSupply(
        BatchSource(batches, as_batch).begin_pass(), StepClock(), lambda _: None, threading.Event()
    )
    assert supply.take() is not None
    with pytest.raises(OSError, match="disk gone"):
        supply.take()
    assert supply.take() is None


def test_waiting_for_a_prefetched_batch_ends_when_training_stops() -> None:
    release, stopped = threading.Event(), threading.Event()

    def batches() -> Iterator[Any]:
        release.wait(60)
        yield BATCHES[0]

    supply = PrefetchingSupply(
        BatchSource(batches, as_batch).begin_pass(), StepClock(), lambda _: None, stopped
    )
    stopped.set()
    assert supply.take() is None
    release.set()
