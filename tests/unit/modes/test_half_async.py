"""Mode "half_async": a worker's threads are merged, workers add up."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.mode_workers import KEY, ROWS, ModeWorkers, gradients

from sparsefleet.errors import UnknownTableError, WorkerError
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_setting import StepGradients


def test_gradients_of_workers_add_up() -> None:
    with ModeWorkers("half_async", workers=2) as job:
        job.run(lambda mode, worker, _thread: mode.hand_over(gradients([1.0, 3.0][worker])))
        assert job.net() == pytest.approx(-0.4)


def test_gradients_of_threads_are_averaged_also_where_only_one_has_a_row() -> None:
    seen: list[float] = []

    def script(mode: Mode, worker: int, thread: int) -> None:
        rows = {1: 1.0, 7: 2.0} if thread == 0 else {7: 4.0}
        mode.hand_over(gradients([1.0, 3.0][thread], rows))
        seen.append(float(mode.pull({ROWS: KEY})[ROWS][0, 0]))

    with ModeWorkers("half_async", threads=2) as job:
        job.run(script)
        assert job.net() == pytest.approx(-0.2)
        assert job.live[0] == pytest.approx(-0.2)
        assert job.row(1) == pytest.approx(-0.05)
        assert job.row(7) == pytest.approx(-0.3)
        assert seen == pytest.approx([-0.3, -0.3])
        stats = job.modes[0].stats()
        assert (stats.steps, stats.pushes, stats.merge_factor) == (2, 1, 2.0)


def test_a_thread_without_data_leaves_and_the_others_continue() -> None:
    def script(mode: Mode, worker: int, thread: int) -> None:
        for _ in range([3, 1][thread]):
            mode.hand_over(gradients(1.0))
        mode.leave()

    with ModeWorkers("half_async", threads=2) as job:
        job.run(script)
        assert job.net() == pytest.approx(-0.3)
        assert job.modes[0].stats().pushes == 3
        job.modes[0].rejoin()
        job.run(script)
        assert job.net() == pytest.approx(-0.6)


def test_a_failing_thread_wakes_the_others() -> None:
    caught: list[BaseException] = []

    def script(mode: Mode, worker: int, thread: int) -> None:
        if thread == 1:
            raise ValueError("bad batch")
        try:
            mode.hand_over(gradients(1.0))
        except WorkerError as error:
            caught.append(error)

    with ModeWorkers("half_async", threads=2) as job:
        with pytest.raises(ValueError, match="bad batch"):
            job.run(script)
        assert "bad batch" in str(caught[0])
        assert job.net() == 0.0


def test_an_error_of_the_push_is_raised_in_every_thread() -> None:
    caught: list[BaseException] = []

    def script(mode: Mode, worker: int, thread: int) -> None:
        try:
            mode.hand_over(StepGradients({}, {"other": np.zeros(1, np.float32)}))
        except UnknownTableError as error:
            caught.append(error)

    with ModeWorkers("half_async", threads=2) as job:
        job.run(script)
        assert len(caught) == 2
