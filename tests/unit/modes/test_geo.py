"""Mode "geo": local copies whose differences are exchanged at intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.mode_workers import KEY, NET, ROWS, ModeWorkers, gradients

from sparsefleet.errors import ConfigError, NonFiniteError, UnknownTableError, WorkerError
from sparsefleet.modes import GeoConfig
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_choice import make_mode
from sparsefleet.modes.mode_setting import BatchOrigin, ModePosition, ModeSetting, StepGradients
from sparsefleet.optim import SGD, Adagrad
from sparsefleet.store import AdmitByCount, LocalStore, TableSpec

EACH_STEP = GeoConfig(push_interval_steps=1)


def test_the_servers_see_the_part_of_one_of_two_workers_and_later_the_rest() -> None:
    with ModeWorkers(EACH_STEP, workers=2) as job:
        mode = job.modes[0]
        mode.pull({ROWS: KEY})
        seen = []
        for window in range(3):
            mode.hand_over(gradients(2.0, {7: 2.0}))
            job.stores[1].wait_version(ROWS, window + 1)
            seen.append((job.row(), job.net()))
        wanted = np.array([-0.1, -0.25, -0.425])
        np.testing.assert_allclose(seen, np.stack([wanted, wanted], axis=1), rtol=1e-5)
        mode.finish()
        assert job.row() == pytest.approx(-0.6)
        assert job.net() == pytest.approx(-0.6)
        assert job.live[0] == pytest.approx(-0.6)


def test_with_batches_on_record_servers_are_ahead_by_what_division_holds_back() -> None:
    with ModeWorkers(EACH_STEP, workers=2) as job:
        mode = job.modes[0]
        mode.pull({ROWS: KEY})
        seen = []
        for number in range(1, 4):
            made = gradients(2.0, {7: 2.0})
            made.origin = BatchOrigin(epoch=0, number=number)
            mode.hand_over(made)
            job.stores[1].wait_version(ROWS, number)
            seen.append(job.row())
    divided, held_back = np.array([-0.1, -0.25, -0.425]), 0.0
    for place, sent in enumerate(divided):
        held_back = (held_back - 0.2) / 2  # the rule of 1.8.5 with two workers
        assert seen[place] == pytest.approx(sent + held_back)


def test_an_exchange_is_one_step_of_the_tables_rules() -> None:
    with ModeWorkers(EACH_STEP, workers=2) as job:
        mode, store = job.modes[0], job.stores[0]
        mode.pull({ROWS: KEY})
        before = store.step
        mode.hand_over(gradients(2.0, {7: 2.0}))  # to a dense table and one of rows
        mode.flush()
        assert store.step - before == 2  # the exchange, and the rest


def test_changes_of_other_workers_come_with_the_next_exchange() -> None:
    with ModeWorkers(EACH_STEP, workers=2) as job:
        first, second = job.modes
        for mode in job.modes:
            mode.pull({ROWS: KEY})
        first.hand_over(gradients(2.0, {7: 2.0}))
        first.flush()
        assert second.pull({ROWS: KEY})[ROWS] == pytest.approx(0.0)
        second.flush()
        assert second.pull({ROWS: KEY})[ROWS] == pytest.approx(-0.2)
        assert job.live[1] == pytest.approx(-0.2)


def test_two_workers_lose_nothing_of_each_other() -> None:
    rng = np.random.default_rng(0)
    keys = np.arange(20, dtype=np.uint64)
    moves = rng.normal(size=(2, 30, 20, 1)).astype(np.float32)

    def script(mode: Mode, worker: int, thread: int) -> None:
        for move in moves[worker]:
            touched = keys[:: worker + 1]
            mode.pull({ROWS: touched})
            made = gradients(float(move[0, 0]))
            made.sparse[ROWS] = (touched, move[:: worker + 1])
            mode.hand_over(made)

    with ModeWorkers(GeoConfig(push_interval_steps=4), workers=2) as job:
        job.run(script)
        job.each(lambda mode: mode.flush())
        moved = moves[0].sum(axis=0)
        moved[::2] += moves[1].sum(axis=0)[::2]
        rows = job.stores[0].pull(ROWS, keys, train=False)
        np.testing.assert_allclose(rows, -0.1 * moved, atol=2e-5)
        assert job.net() == pytest.approx(-0.1 * moves[:, :, 0, 0].sum(), abs=2e-5)


def test_workers_start_from_the_servers_rows() -> None:
    with ModeWorkers(EACH_STEP, workers=2) as job:
        job.stores[0].push(ROWS, KEY, np.full((1, 1), 5.0, np.float32), add=True)
        assert job.modes[1].pull({ROWS: KEY})[ROWS] == pytest.approx(5.0)


def test_inference_reads_from_the_servers_and_creates_nothing() -> None:
    with ModeWorkers(GeoConfig(push_interval_steps=9)) as job:
        mode = job.modes[0]
        mode.pull({ROWS: KEY})
        mode.hand_over(gradients(1.0, {7: 1.0}))
        assert mode.pull({ROWS: KEY})[ROWS] == pytest.approx(-0.1)
        assert mode.pull({ROWS: KEY}, train=False)[ROWS] == 0.0
        mode.pull({ROWS: KEY + np.uint64(1)}, train=False)
        assert job.stores[0].stats()[0][f"table.{ROWS}.rows"] == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_an_exchange_takes_so_many_mini_batches_of_all_threads(threads: int) -> None:
    with ModeWorkers(GeoConfig(push_interval_steps=4), threads=threads) as job:

        def script(mode: Mode, worker: int, thread: int) -> None:
            for _ in range(10 // threads):
                mode.hand_over(gradients(1.0))
            mode.leave()

        job.run(script)
        job.modes[0].flush()
        stats = job.modes[0].stats()
        assert (stats.steps, stats.pushes, stats.merged_gradients) == (10, 3, 10)
        assert job.net() == pytest.approx(-1.0)


@pytest.mark.parametrize(
    "begun",
    [{"first_step": 10_000}, {"position": ModePosition(state={"steps": 9500}, batches=500)}],
)
def test_a_resumed_training_does_not_start_again_with_an_exchange_per_batch(
    begun: dict[str, Any],
) -> None:
    with ModeWorkers("geo", **begun) as job:
        for _ in range(99):
            job.modes[0].hand_over(gradients(1.0))
        assert job.modes[0].stats().staleness_last == 98
        job.modes[0].hand_over(gradients(1.0))
        job.modes[0].flush()
        assert job.modes[0].stats().pushes == 1


def test_a_model_without_tables_is_exchanged_too() -> None:
    with ModeWorkers(EACH_STEP, workers=2, tables={}) as job:
        job.modes[0].hand_over(gradients(1.0))
        job.modes[0].finish()
        assert job.net() == pytest.approx(-0.1)


def test_an_error_in_the_background_is_raised_by_a_later_call() -> None:
    with ModeWorkers(EACH_STEP) as job:
        mode = job.modes[0]
        mode.pull({ROWS: KEY})
        mode._store = LocalStore()  # one without any of the tables
        mode.hand_over(gradients(1.0, {7: 1.0}))
        with pytest.raises(UnknownTableError):
            mode.flush()


def test_a_failing_thread_stops_the_others() -> None:
    with ModeWorkers(EACH_STEP, threads=2) as job:
        job.modes[0].fail(ValueError("bad batch"))
        with pytest.raises(WorkerError, match="bad batch"):
            job.modes[0].hand_over(gradients(1.0))


def test_a_dense_gradient_in_parts_is_that_of_the_parts_together() -> None:
    with ModeWorkers(EACH_STEP) as job:
        mode = job.modes[0]
        assert mode.takes_parts
        mode.hand_over(StepGradients(dense_parts={NET: [np.array([2.0], np.float32)]}))
        assert job.live[0] == pytest.approx(-0.2)


def test_a_dense_gradient_with_nan_is_refused() -> None:
    with ModeWorkers(EACH_STEP) as job:
        with pytest.raises(NonFiniteError, match=f"'{NET}'"):
            job.modes[0].hand_over(gradients(float("nan")))
        assert job.live[0] == 0.0


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (TableSpec(name="ads", dim=1, optimizer=Adagrad()), "'ads' has optimizer Adagrad"),
        (TableSpec(name="ads", dim=1, optimizer=SGD(l2=0.1)), "l2=0.1"),
        (
            TableSpec(name="ads", dim=1, optimizer=SGD(), admission=AdmitByCount(2)),
            "'ads'.*AdmitByCount",
        ),
    ],
    ids=["adagrad", "weight decay", "admission"],
)
def test_all_but_plain_sgd_is_refused(spec: TableSpec, named: str) -> None:
    with LocalStore() as store, pytest.raises(ConfigError, match=named):
        make_mode("geo", ModeSetting(store=store, tables={"ads": spec}))


def test_dense_optimizers_other_than_plain_sgd_are_refused() -> None:
    with LocalStore() as store:
        setting = ModeSetting(
            store=store,
            tables={},
            dense={"net": np.zeros(1, np.float32)},
            dense_optimizers={"net": Adagrad()},
        )
        with pytest.raises(ConfigError, match="dense table 'net'"):
            make_mode("geo", setting)


@pytest.mark.parametrize("servers", [1, 2])
def test_an_exchange_that_would_outgrow_a_frame_is_sent_before(servers: int) -> None:
    keys = np.arange(4000, dtype=np.uint64)
    config = GeoConfig(push_interval_steps=1000)
    # 1,365 rows of 12 bytes
    with ModeWorkers(config, servers=servers, max_frame_bytes=16 << 10) as job:
        mode, store = job.modes[0], job.stores[0]
        for number, part in enumerate(np.split(keys, 20), 1):
            mode.pull({ROWS: part})
            made = gradients(1.0)
            made.sparse[ROWS] = (part, np.ones((len(part), 1), np.float32))
            made.origin = BatchOrigin(epoch=0, number=number)
            mode.hand_over(made)
        early = store.applied_data()
        mode.finish()
        # Exchanges are whole mini-batches, and those before the last were sent without being asked.
        for marks in early:
            [(stream, epoch, begin, end)] = marks
            assert (stream, epoch, begin) == (0, 0, 0)
            assert 10 <= end < 20
        assert {tuple(marks) for marks in store.applied_data()} == {((0, 0, 0, 20),)}
        rows = np.concatenate([store.pull(ROWS, part, train=False) for part in np.split(keys, 4)])
        assert np.all(rows == np.float32(-0.1))
        assert job.net() == pytest.approx(-2.0)


def test_rows_that_repeat_do_not_make_exchanges_more_frequent() -> None:
    keys = np.arange(1000, dtype=np.uint64)
    with ModeWorkers(GeoConfig(push_interval_steps=1000), max_frame_bytes=16 << 10) as job:
        mode = job.modes[0]
        for number in range(1, 11):
            mode.pull({ROWS: keys})
            made = gradients(1.0)
            made.sparse[ROWS] = (keys, np.ones((len(keys), 1), np.float32))
            made.origin = BatchOrigin(epoch=0, number=number)
            mode.hand_over(made)
        assert job.stores[0].applied_data() == [[]]
        mode.finish()
        assert job.stores[0].applied_data() == [[(0, 0, 0, 10)]]
