"""Mode "async": gradients are sent in the background, and none is lost."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.mode_workers import ModeWorkers, gradients

from sparsefleet.errors import ConfigError, UnknownTableError, WorkerError
from sparsefleet.modes import AsyncConfig
from sparsefleet.modes.mode_setting import ModePosition, StepGradients
from sparsefleet.optim import SGD, Adagrad, Optimizer

LINGER = 30.0
"""Longer than any test, so the sender proceeds only with the number of mini-batches it needs."""


def test_all_gradients_of_all_threads_add_up() -> None:
    with ModeWorkers("async", workers=2, threads=2) as job:
        job.run(
            lambda mode, worker, thread: mode.hand_over(
                gradients(1.0 + 2 * worker + 4 * thread, {worker * 2 + thread: 1.0})
            )
        )
        job.each(lambda mode: mode.flush())
        assert job.net() == pytest.approx(-1.6)
        assert [job.row(key) for key in range(4)] == pytest.approx([-0.1] * 4)


def test_flush_applies_and_fetches_everything() -> None:
    config = AsyncConfig(max_merge=100, queue_size=100, wait_s=LINGER, steps_before_refresh=100)
    with ModeWorkers(config) as job:
        for _ in range(5):
            job.modes[0].hand_over(gradients(1.0))
        assert job.live[0][0] == 0.0
        job.modes[0].flush()
        assert job.live[0] == pytest.approx(-0.5)


def test_finish_loses_nothing() -> None:
    config = AsyncConfig(max_merge=7, queue_size=50, wait_s=LINGER)
    with ModeWorkers(config) as job:
        for _ in range(20):
            job.modes[0].hand_over(gradients(1.0))
        job.modes[0].finish()
        assert job.net() == pytest.approx(-2.0)
        assert job.live[0] == pytest.approx(-2.0)


def test_by_default_plain_sgd_is_merged_and_other_optimizers_are_not() -> None:
    config = AsyncConfig(warmup_steps=0)
    with ModeWorkers(config) as job:
        for _ in range(8):
            job.modes[0].hand_over(gradients(1.0))
        job.modes[0].flush()
        assert job.modes[0].stats().merge_factor > 1
        assert job.net() == pytest.approx(-0.8)
    with ModeWorkers(config, optimizer=Adagrad(lr=0.1)) as job:
        for _ in range(8):
            job.modes[0].hand_over(gradients(1.0))
        job.modes[0].flush()
        assert job.modes[0].stats().merge_factor == 1


@pytest.mark.parametrize("max_merge", [1, 2, 4])
def test_pushes_and_merge_factor_follow_max_merge(max_merge: int) -> None:
    config = AsyncConfig(max_merge=max_merge, queue_size=2, wait_s=LINGER)
    with ModeWorkers(config) as job:
        for _ in range(8):
            job.modes[0].hand_over(gradients(1.0))
        job.modes[0].flush()
        stats = job.modes[0].stats()
        assert (stats.steps, stats.pushes, stats.merge_factor) == (8, 8 / max_merge, max_merge)


def test_dense_values_are_fetched_after_more_than_so_many_gradients() -> None:
    config = AsyncConfig(max_merge=1, queue_size=1, steps_before_refresh=2, max_staleness=None)
    with ModeWorkers(config) as job:
        mode = job.modes[0]
        seen = []
        for _ in range(6):
            mode.hand_over(gradients(1.0))
            mode._sender.wait_empty()  # so that each push is a known number of gradients
            seen.append(round(float(job.live[0][0]), 4))
        assert seen == [0.0, 0.0, -0.3, -0.3, -0.3, -0.6]
        assert mode.stats().staleness_last == 2


@pytest.mark.parametrize(("merge", "first"), [("auto", 4.0), ("sum", 8.0), ("mean", 4.0)], ids=str)
def test_merge_is_the_mean_unless_the_optimizer_is_plain_sgd(merge: str, first: float) -> None:
    # After gradients g, then 1, Adagrad has moved by 1 + 1 / sqrt(g * g + 1) rates.
    config = AsyncConfig(max_merge=2, queue_size=2, wait_s=LINGER, merge=merge)
    with ModeWorkers(config, optimizer=Adagrad(lr=0.1)) as job:
        for value in (3.0, 5.0):
            job.modes[0].hand_over(gradients(value))
        job.modes[0].flush()
        job.modes[0].hand_over(gradients(1.0))
        job.modes[0].flush()
        assert job.net() == pytest.approx(-0.1 - 0.1 / np.sqrt(first**2 + 1), rel=1e-4)


def test_an_error_in_the_background_is_raised_by_the_next_call() -> None:
    with ModeWorkers(AsyncConfig(warmup_steps=0)) as job:
        mode = job.modes[0]
        mode.hand_over(StepGradients({}, {"other": np.zeros(1, np.float32)}))
        with pytest.raises(UnknownTableError):
            mode.flush()
        with pytest.raises(UnknownTableError):
            mode.hand_over(gradients(1.0))
        with pytest.raises(UnknownTableError):
            mode.finish()
        mode.finish()


def test_a_step_of_the_warm_up_raises_the_error_of_its_own_push() -> None:
    with ModeWorkers("async") as job:
        with pytest.raises(UnknownTableError):
            job.modes[0].hand_over(StepGradients({}, {"other": np.zeros(1, np.float32)}))
        with pytest.raises(UnknownTableError):
            job.modes[0].finish()
        job.modes[0].finish()


def test_a_failure_wakes_a_thread_that_waits_for_room() -> None:
    config = AsyncConfig(max_merge=4, queue_size=1, wait_s=LINGER)
    with ModeWorkers(config) as job:
        job.modes[0].hand_over(gradients(1.0))
        job.modes[0].fail(ValueError("bad batch"))
        with pytest.raises(WorkerError, match="bad batch"):
            job.modes[0].hand_over(gradients(1.0))
        assert job.net() == 0.0


@pytest.mark.parametrize(
    "bad",
    [{"max_merge": 0}, {"queue_size": 0}, {"wait_s": -1.0}, {"merge": "max"},
     {"steps_before_refresh": -1}, {"max_staleness": -1}],
    ids=str,
)  # fmt: skip
def test_bad_knobs_are_named(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"AsyncConfig.{next(iter(bad))}"):
        AsyncConfig(**bad)  # type: ignore[arg-type]


def test_rows_are_not_pulled_ahead_during_the_warm_up() -> None:
    with ModeWorkers(AsyncConfig(warmup_steps=3)) as job:
        mode = job.modes[0]
        fresh = []
        for _ in range(5):
            fresh.append(mode.needs_fresh_rows)
            mode.hand_over(gradients(1.0))
        assert fresh == [True, True, True, False, False]
        assert mode.state()["steps"] == 5
    with ModeWorkers(AsyncConfig(warmup_steps=0)) as job:
        assert not job.modes[0].needs_fresh_rows
    begun = ModePosition(state={"steps": 900}, batches=100)
    with ModeWorkers("async", position=begun) as job:
        assert not job.modes[0].needs_fresh_rows, "a worker in place of another warms up again"
    with pytest.raises(ConfigError, match="warmup_steps"):
        AsyncConfig(warmup_steps=-1)


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), Adagrad(lr=0.1)], ids=str)
def test_steps_of_the_warm_up_end_with_their_gradients_applied_and_fresh_values(
    optimizer: Optimizer,
) -> None:
    config = AsyncConfig(warmup_steps=3)
    with ModeWorkers(config, workers=2, optimizer=optimizer) as job:
        first, second = job.modes
        for _ in range(3):
            first.hand_over(gradients(1.0))
            assert job.live[0][0] == job.net()
            second.hand_over(gradients(1.0))
            assert job.live[1][0] == job.net()
        first.hand_over(gradients(1.0))  # in the background from now on
        first.flush()
        assert first.stats().steps == 4


def test_after_the_warm_up_plain_sgd_is_merged_again() -> None:
    with ModeWorkers(AsyncConfig(warmup_steps=3)) as job:
        mode = job.modes[0]
        for _ in range(3 + 8):
            mode.hand_over(gradients(1.0))
        mode.flush()
        assert mode.stats().pushes < 3 + 8
        assert job.net() == pytest.approx(-1.1)


@pytest.mark.parametrize(
    "config",
    [
        AsyncConfig(queue_size=3),
        AsyncConfig(max_merge=3, wait_s=LINGER),
        AsyncConfig(steps_before_refresh=100),
        AsyncConfig(warmup_steps=0),
    ],
    ids=str,
)
def test_steps_of_the_warm_up_do_not_wait_where_a_setting_says_so(config: AsyncConfig) -> None:
    with ModeWorkers(config, optimizer=Adagrad(lr=0.1)) as job:
        flushed = []
        sender = job.modes[0]._sender
        flush, sender.flush = sender.flush, lambda: flushed.append(1)
        job.modes[0].hand_over(gradients(1.0))
        sender.flush = flush
        assert not flushed
