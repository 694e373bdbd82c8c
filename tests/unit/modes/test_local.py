"""Mode "local": gradients are applied at once."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.mode_workers import KEY, NET, ROWS, ModeWorkers, gradients

from sparsefleet.errors import ConfigError, WorkerError
from sparsefleet.modes.mode_choice import make_mode
from sparsefleet.modes.mode_setting import ModeSetting
from sparsefleet.optim import SGD
from sparsefleet.store import Constant, LocalStore, TableSpec


def test_a_step_is_applied_and_fetched_when_hand_over_returns() -> None:
    with ModeWorkers("local") as job:
        mode = job.modes[0]
        mode.hand_over(gradients(1.0, {7: 2.0}))
        assert job.live[0] == pytest.approx(-0.1)
        assert mode.pull({ROWS: KEY})[ROWS] == pytest.approx(-0.2)


def test_threads_do_not_wait_for_each_other() -> None:
    with ModeWorkers("local", threads=2) as job:
        job.modes[0].hand_over(gradients(1.0))
        job.modes[0].hand_over(gradients(3.0))
        assert job.net() == pytest.approx(-0.4)
        stats = job.modes[0].stats()
        assert (stats.steps, stats.pushes, stats.merge_factor) == (2, 2, 1.0)


def test_dense_step_takes_dense_gradients_in_place_of_the_store() -> None:
    spec = TableSpec(name=ROWS, dim=1, optimizer=SGD(lr=0.1), initializer=Constant(0.0))
    live = np.zeros(2, np.float32)

    def half_step(dense: dict[str, np.ndarray]) -> None:
        live[:] -= 0.5 * dense[NET]

    with LocalStore() as store:
        store.define(spec)
        setting = ModeSetting(
            store=store, tables={ROWS: spec}, dense={NET: live}, dense_step=half_step
        )
        mode = make_mode("local", setting)
        mode.start()
        mode.hand_over(gradients(1.0, {7: 1.0}, width=2))
        mode.finish()
        np.testing.assert_allclose(live, -0.5)
        assert store.pull(ROWS, KEY) == pytest.approx(-0.1)


def test_inference_pull_creates_no_row() -> None:
    with ModeWorkers("local") as job:
        job.modes[0].pull({ROWS: KEY}, train=False)
        assert job.stores[0].stats()[0][f"table.{ROWS}.rows"] == 0


def test_after_a_failure_other_threads_stop_and_say_why() -> None:
    with ModeWorkers("local", threads=2) as job:
        job.modes[0].fail(ValueError("bad batch"))
        with pytest.raises(WorkerError, match="worker 0: ValueError.'bad batch'."):
            job.modes[0].hand_over(gradients(1.0))


def test_a_finished_mode_takes_no_more() -> None:
    with ModeWorkers("local") as job:
        job.modes[0].finish()
        job.modes[0].finish()
        with pytest.raises(ConfigError, match="finished"):
            job.modes[0].hand_over(gradients(1.0))


def test_several_workers_are_refused() -> None:
    with LocalStore() as store, pytest.raises(ConfigError, match="2 workers"):
        make_mode("local", ModeSetting(store=store, tables={}, worker_num=2))
