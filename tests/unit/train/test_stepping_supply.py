"""Batches read at the end of a step, whose rows come back with its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sparsefleet.nn import Lookup, PulledRows
from sparsefleet.nn.pulled_rows import plan_rows
from sparsefleet.train.batch_source import BatchSource
from sparsefleet.train.batch_supply import SteppingSupply
from sparsefleet.train.step_clock import StepClock

BATCHES = [(torch.tensor([number, 7]), torch.zeros(2)) for number in range(4)]


def plan(inputs: Any) -> PulledRows:
    return plan_rows([Lookup("ads", 2, inputs)])


def fill(rows: PulledRows | None) -> None:
    assert rows is not None
    for table, keys in rows.wanted().items():
        rows.tables[table].rows = np.ones((len(keys), 2), np.float32)


def test_batches_come_in_order_with_the_rows_that_the_step_before_brought() -> None:
    feed = BatchSource(BATCHES).begin_pass()
    supply, clock = SteppingSupply(feed, plan), StepClock()
    found = []
    while (supplied := supply.take(clock)) is not None:
        found.append((supplied.batch.number, supplied.pulled is not None))
        assert not supply.has_ahead
        if supply.read_ahead(clock) is not None:
            assert supply.has_ahead
            assert supply._ahead is not None
            fill(supply._ahead.pulled)
    assert found == [(1, False), (2, True), (3, True), (4, True)]
    assert supply.take(clock) is None


def test_nothing_is_read_ahead_where_a_save_is_next() -> None:
    feed = BatchSource(BATCHES).begin_pass()
    supply, clock = SteppingSupply(feed, plan), StepClock()
    supply.take(clock, read_ahead=False)
    assert supply.read_ahead(clock) is None
    assert feed.taken == 1
    assert not supply.has_ahead
    supplied = supply.take(clock)
    assert supplied is not None
    assert supplied.batch.number == 2


def test_a_batch_without_a_plan_is_read_ahead_all_the_same() -> None:
    supply = SteppingSupply(BatchSource(BATCHES).begin_pass(), lambda _: None)
    clock = StepClock()
    supply.take(clock)
    assert supply.read_ahead(clock) is None
    assert supply.has_ahead
    supplied = supply.take(clock)
    assert supplied is not None
    assert supplied.batch.number == 2


def test_what_reading_raised_comes_after_the_step_that_read() -> None:
    def batches() -> Iterator[Any]:
        yield BATCHES[0]
        raise OSError("disk gone")

    supply, clock = SteppingSupply(BatchSource(batches).begin_pass(), plan), StepClock()
    supply.take(clock)
    assert supply.read_ahead(clock) is None
    with pytest.raises(OSError, match="disk gone"):
        supply.take(clock)
    assert supply.take(clock) is None
