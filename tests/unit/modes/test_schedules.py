"""Learning-rate schedules advance correctly in every mode; the rate starts at 0.1 and halves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.mode_workers import KEY, NET, ROWS, ModeWorkers, RecordedRates, gradients

from sparsefleet.modes import AsyncConfig, GeoConfig
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_choice import make_mode
from sparsefleet.modes.rates import ScheduledRates

HALVINGS = [0.1, 0.05, 0.025, 0.0125, 0.00625, 0.003125]


def steps(mode: Mode, count: int) -> None:
    for _ in range(count):
        mode.pull({ROWS: KEY})
        mode.hand_over(gradients(1.0, {7: 1.0}))
    mode.leave()


@pytest.mark.parametrize("mode", ["local", "sync", "half_async", "async", "hybrid", "geo"])
def test_alone_the_rate_follows_the_steps(mode: str) -> None:
    with ModeWorkers(mode, schedule=RecordedRates()) as job:
        steps(job.modes[0], 4)
        job.modes[0].finish()
        assert job.net() == pytest.approx(-sum(HALVINGS[:4]), rel=1e-5)


@pytest.mark.parametrize("mode", ["local", "sync", "half_async", "async", "hybrid", "geo"])
def test_another_training_on_the_same_tables_begins_with_the_first_rate(mode: str) -> None:
    with ModeWorkers(mode, schedule=RecordedRates()) as job:
        steps(job.modes[0], 4)
        job.modes[0].finish()
        again = make_mode(mode, job.modes[0]._setting)
        again.start()
        steps(again, 3)
        again.finish()
        assert job.net() == pytest.approx(-sum(HALVINGS[:4]) - sum(HALVINGS[:3]), rel=1e-5)


def test_a_resumed_training_has_its_own_rate_before_the_first_step() -> None:
    with ModeWorkers("local", schedule=RecordedRates()) as job:
        setting = replace(job.modes[0]._setting, first_step=3)
        mode = make_mode("hybrid", setting)
        mode.start()
        setting.store.push_many({}, gradients(1.0, {7: 1.0}).dense)
        mode.finish()
        assert job.net() == pytest.approx(-HALVINGS[3], rel=1e-5)


def test_sync_counts_rounds_whoever_takes_part() -> None:
    with ModeWorkers("sync", workers=2, schedule=RecordedRates()) as job:
        job.run(lambda mode, worker, _thread: steps(mode, [1, 3][worker]))
        assert job.net() == pytest.approx(-sum(HALVINGS[:3]), rel=1e-5)
        job.each(lambda mode: mode.rejoin())
        job.run(lambda mode, worker, _thread: steps(mode, [2, 1][worker]))
        assert job.net() == pytest.approx(-sum(HALVINGS[:5]), rel=1e-5)
        assert job.row() == pytest.approx(-sum(HALVINGS[:5]), rel=1e-5)


def test_half_async_counts_the_threads_merged() -> None:
    with ModeWorkers("half_async", threads=2, schedule=RecordedRates()) as job:
        job.run(lambda mode, _worker, _thread: steps(mode, 3))
        assert job.net() == pytest.approx(-(HALVINGS[0] + HALVINGS[2] + HALVINGS[4]), rel=1e-5)


@pytest.mark.parametrize("mode", ["half_async", AsyncConfig(max_merge=1, queue_size=1)], ids=str)
def test_mini_batches_of_all_workers_count(mode: str) -> None:
    with ModeWorkers(mode, workers=2, schedule=RecordedRates()) as job:
        for worker in (0, 1, 0, 1):
            job.modes[worker].hand_over(gradients(1.0))
            job.modes[worker].flush()
        assert job.net() == pytest.approx(-sum(HALVINGS[:4]), rel=1e-5)


def test_async_counts_mini_batches_not_pushes() -> None:
    config = AsyncConfig(max_merge=3, queue_size=3, wait_s=30.0)
    with ModeWorkers(config, schedule=RecordedRates()) as job:
        for _ in range(6):
            job.modes[0].hand_over(gradients(1.0))
        job.modes[0].flush()
        assert job.net() == pytest.approx(-3 * (HALVINGS[0] + HALVINGS[3]), rel=1e-5)


def test_geo_counts_the_mini_batches_of_each_worker() -> None:
    with ModeWorkers(GeoConfig(), workers=2, schedule=RecordedRates()) as job:
        job.run(lambda mode, worker, _thread: steps(mode, [1, 3][worker]))
        job.each(lambda mode: mode.finish())
        wanted = -(HALVINGS[0] + sum(HALVINGS[:3]))
        assert job.net() == pytest.approx(wanted, rel=1e-5)
        assert job.row() == pytest.approx(wanted, rel=1e-5)


def test_dense_step_keeps_its_own_rate() -> None:
    taken: list[float] = []
    with ModeWorkers(
        "local",
        schedule=RecordedRates(),
        dense_step=lambda dense: taken.append(float(dense[NET][0])),
    ) as job:
        steps(job.modes[0], 2)
        assert taken == [1.0, 1.0]
        assert job.row() == pytest.approx(-sum(HALVINGS[:2]), rel=1e-5)


class UpAndDown:
    """0.1 at even steps, 0.2 at odd ones."""

    def rates_at(self, step: int) -> dict[str, float]:
        return dict.fromkeys((ROWS, NET), 0.2 if step % 2 else 0.1)


def test_a_rate_that_comes_back_is_set_again_by_a_worker_that_had_set_it_before() -> None:
    with ModeWorkers("half_async", workers=2, schedule=UpAndDown()) as job:
        for worker in (0, 1, 1, 0, 0, 1):
            job.modes[worker].hand_over(gradients(1.0))
        assert job.net() == pytest.approx(-3 * 0.3, rel=1e-5)


def test_rates_that_stay_are_not_sent_again() -> None:
    sent: list[tuple[str, float, int | None]] = []

    class Store:
        def set_learning_rate(self, table: str, lr: float, *, at: int | None = None) -> None:
            sent.append((table, lr, at))

    class Steps:
        def rates_at(self, step: int) -> dict[str, float]:
            return {NET: 0.1 if step < 5 else 0.01}

    keeper = ScheduledRates(Steps(), Store(), [NET, ROWS])
    for step in (0, 1, 4, 6, 7, 3, 100_000):
        keeper.at(step)
    assert sent[:2] == [(NET, 0.1, 0), (NET, 0.01, 6)]
    assert sent[2:] == [(NET, 0.01, 100_000)]  # too many steps in between to look at each
