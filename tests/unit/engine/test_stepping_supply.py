"""Batches read at the end of a step, whose rows come back with its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sparsefleet.engine.batch_source import BatchSource
from sparsefleet.engine.batch_supply import SteppingSupply
from sparsefleet.engine.clock import StepClock
from sparsefleet.engine.workload import Batch
from sparsefleet.nn.lookup import Lookup
from sparsefleet.nn.pulled_rows import PulledRows, plan_rows

BATCHES = [(torch.tensor([number, 7]), torch.zeros(2)) for number in range(4)]


def as_batch(raw: Any, number: int) -> Batch:
    inputs, labels = raw
    return Batch(number, inputs, labels, len(labels))


def plan(inputs: Any) -> PulledRows:
    return plan_rows([Lookup("ads", 2, inputs)])


def fill(rows: PulledRows | None) -> None:
    assert rows is not None
    for table, keys in rows.wanted().items():
        rows.tables[table].rows = np.ones((len(keys), 2), np.float32)


def test_batches_come_in_order_with_the_rows_that_the_step_before_brought() -> None:
    feed = BatchSource(BATCHES, as_batch).begin_pass()
    supply = SteppingSupply(feed, StepClock(), plan)
    found = []
    while (supplied := supply.take()) is not None:
        found.append((supplied.batch.number, supplied.pulled is not None))
        assert not supply.has_ahead
        if supply.read_ahead() is not None:
            assert supply.has_ahead
            assert supply._ahead is not None
            fill(supply._ahead.pulled)
    assert found == [(1, False), (2, True), (3, True), (4, True)]
    assert supply.take() is None


def test_nothing_is_read_ahead_where_a_save_is_next() -> None:
    feed = BatchSource(BATCHES, as_batch).begin_pass()
    supply = SteppingSupply(feed, StepClock(), plan)
    supply.take(read_ahead=False)
    assert supply.read_ahead() is None
    assert feed.taken == 1
    assert not supply.has_ahead
    supplied = supply.take()
    assert supplied is not None
    assert supplied.batch.number == 2


def test_a_batch_without_a_plan_is_read_ahead_all_the_same() -> None:
    supply = SteppingSupply(
        BatchSource(BATCHES, as_batch).begin_pass(), StepClock(), lambda _: None
    )
    supply.take()
    assert supply.read_ahead() is None
    assert supply.has_ahead
    supplied = supply.take()
    assert supplied is not None
    assert supplied.batch.number == 2


def test_what_reading_raised_comes_after_the_step_that_read() -> None:
    def batches() -> Iterator[Any]:
        yield BATCHES[0]
        raise OSError("disk gone")

    supply = SteppingSupply(BatchSource(batches, as_batch).begin_pass(), StepClock(), plan)
    supply.take()
    assert supply.read_ahead() is None
    with pytest.raises(OSError, match="disk gone"):
        supply.take()
    assert supply.take() is None
