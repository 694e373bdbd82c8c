"""Rows for the next mini-batches come back with the gradients of the current ones."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.mode_workers import ROWS, ModeWorkers, gradients

from sparsefleet.modes.half_async import NextRows
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_setting import StepGradients
from sparsefleet.store import TableSpec


def wanting(*keys: int) -> StepGradients:
    made = StepGradients()
    if keys:
        made.wanted[ROWS] = np.array(keys, np.uint64)
    return made


def test_each_thread_gets_the_rows_of_its_own_keys() -> None:
    copies = [wanting(4, 5), wanting(), wanting(5)]
    ahead = NextRows(copies, {ROWS: TableSpec(name=ROWS, dim=2)})
    keys, rows = ahead.rows[ROWS]
    assert list(keys) == [4, 5, 5]
    rows[:] = [[1, 1], [2, 2], [3, 3]]
    ahead.hand_out()
    np.testing.assert_array_equal(copies[0].brought[ROWS], [[1, 1], [2, 2]])
    assert copies[1].brought == {}
    np.testing.assert_array_equal(copies[2].brought[ROWS], [[3, 3]])


def test_nothing_wanted_asks_for_nothing() -> None:
    assert NextRows([wanting(), wanting()], {}).rows == {}


@pytest.mark.parametrize("mode", ["sync", "half_async"])
@pytest.mark.parametrize("workers", [1, 2])
def test_brought_rows_have_seen_the_step(mode: str, workers: int) -> None:
    seen: list[list[float]] = []

    def script(made: Mode, worker: int, thread: int) -> None:
        for _ in range(3):
            step = gradients(1.0, {thread: 1.0})
            step.wanted[ROWS] = np.array([thread, 90 + worker], np.uint64)
            made.hand_over(step)
        seen.append([float(value) for value in step.brought[ROWS][:, 0]])
        made.leave()

    with ModeWorkers(mode, workers=workers, servers=2, threads=2) as job:
        job.run(script)
        # Lr 0.1, three steps, each thread's row has half of the worker's mean.
        if mode == "sync" or workers == 1:
            assert seen == [pytest.approx([-0.15, 0.0])] * 2 * workers
        stats = job.stores[0].stats()
        assert sum(each[f"table.{ROWS}.rows"] for each in stats) == 2 + workers
        # Only the pull of the dense values, at the start.
        assert sum(each.get("server.requests.pull", 0) for each in stats) == workers
