"""Mode "hybrid": dense as in sync, rows as in async."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.mode_workers import NET, ModeWorkers, gradients

from sparsefleet.errors import ConfigError, UnknownTableError
from sparsefleet.modes import HybridConfig
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_setting import StepGradients


def test_dense_gradients_are_averaged_and_rows_add_up() -> None:
    def script(mode: Mode, worker: int, thread: int) -> None:
        for _ in range(2):
            mode.hand_over(gradients([1.0, 3.0][worker], {7: 1.0, 100 + worker: 1.0}))

    with ModeWorkers("hybrid", workers=2) as job:
        job.run(script)
        assert [float(live[0]) for live in job.live] == pytest.approx([-0.4, -0.4])
        job.each(lambda mode: mode.flush())
        assert job.row(7) == pytest.approx(-0.4)
        assert job.row(101) == pytest.approx(-0.2)


def test_rows_of_a_worker_that_has_left_arrive_all_the_same() -> None:
    config = HybridConfig(max_merge=50, queue_size=50, wait_s=30.0)

    def script(mode: Mode, worker: int, thread: int) -> None:
        for _ in range(5 * (1 + worker)):
            mode.hand_over(gradients(1.0, {7: 1.0}))
        mode.leave()

    with ModeWorkers(config, workers=2) as job:
        job.run(script)
        job.each(lambda mode: mode.finish())
        assert job.row(7) == pytest.approx(-1.5)
        assert job.net() == pytest.approx(-1.0)


def test_an_error_in_the_background_is_raised_by_the_next_call() -> None:
    with ModeWorkers("hybrid") as job:
        mode = job.modes[0]
        rows = (np.array([1], np.uint64), np.ones((1, 1), np.float32))
        mode.hand_over(StepGradients({"other": rows}, {NET: np.ones(1, np.float32)}))
        with pytest.raises(UnknownTableError):
            mode.flush()


def test_bad_knobs_are_refused() -> None:
    with pytest.raises(ConfigError, match="queue_size"):
        HybridConfig(queue_size=0)
