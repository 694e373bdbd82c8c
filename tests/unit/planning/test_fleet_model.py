"""The model of a fleet: properties that hold whatever the costs are."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.planning import (
    MODES,
    Crowding,
    FleetShape,
    JobShape,
    gbit,
    load_machine,
    predict,
)
from sparsefleet.planning.simulation import Host, Process, Simulation

JOB = JobShape(
    batch=512, ids=13_000, keys=5_000, row_floats=16, dense=100_000, compute_s=0.02, variation=0.0
)
COSTS = load_machine("amd-epyc")


def cluster(workers: int, servers: int, network: float = 25.0) -> FleetShape:
    return FleetShape(
        workers=workers, servers=servers, network_bytes_per_s=gbit(network), worker_cores=8
    )


@pytest.mark.parametrize("mode", MODES)
def test_one_worker_is_no_faster_than_its_own_computing(mode: str) -> None:
    found = predict(mode, JOB, cluster(1, 1), COSTS)
    most = JOB.batch / JOB.compute_s
    assert 0.3 * most < found.examples_per_s <= most * 1.001
    assert found.bytes_per_example > 0


@pytest.mark.parametrize("mode", MODES)
def test_more_workers_train_more_and_no_better_than_in_proportion(mode: str) -> None:
    few, many = (predict(mode, JOB, cluster(count, 4), COSTS) for count in (2, 16))
    assert few.examples_per_s < many.examples_per_s <= 8.05 * few.examples_per_s


def test_a_slow_network_limits_the_rate_to_its_bandwidth() -> None:
    found = predict("half_async", JOB, cluster(64, 1, network=1.0), COSTS)
    assert found.network_busy > 0.9
    assert found.examples_per_s * found.bytes_per_example / 2 < gbit(1.0) * 1.1


def test_processes_of_one_machine_share_its_cores() -> None:
    one, four = (
        predict("sync", JOB, FleetShape(workers=count, servers=1, worker_cores=1), COSTS)
        for count in (1, 4)
    )
    assert four.examples_per_s == pytest.approx(one.examples_per_s, rel=0.1)


def test_tasks_end_however_late_the_clock_is() -> None:
    """A rest of work too short to advance a late clock once kept the simulation busy forever."""
    simulation, ends = Simulation(), []
    host = Host(simulation, cores=2, crowding=Crowding(displaced=0.16))

    def task(number: int) -> Process:
        thread = host.thread()
        yield simulation.sleep(1e9)
        for _ in range(20):
            yield thread.work(0.1 + number / 3)
        ends.append(number)

    for number in range(7):
        simulation.start(task(number))
    events = itertools.count()
    simulation.run(lambda: len(ends) == 7 or next(events) > 10_000)
    assert sorted(ends) == list(range(7))


@pytest.fixture
def last_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a thread that finds all cores busy share the last one."""
    monkeypatch.setattr(random.Random, "choice", lambda _, cores: cores[-1])


@pytest.mark.usefixtures("last_core")
def test_a_thread_stays_on_a_shared_core_until_another_has_been_idle_for_a_tick() -> None:
    assert sorted(_ends(1e-3, 2e-3, 2e-3)) == pytest.approx((1e-3, 4e-3, 4e-3))
    # After 1 ms and a tick of 4 ms, 2.5 ms of each 10 ms are done; then both have a core.
    assert sorted(_ends(1e-3, 10e-3, 10e-3)) == pytest.approx((1e-3, 12.5e-3, 12.5e-3))


def _ends(*seconds: float) -> list[float]:
    """Run tasks that start one after another on two cores, the last two on the same one."""
    simulation, ends = Simulation(), list[float]()
    host = Host(simulation, cores=2)

    def task(work_s: float) -> Process:
        yield host.thread().work(work_s)
        ends.append(simulation.now_s)

    for one in seconds:
        simulation.start(task(one))
    simulation.run(lambda: len(ends) == len(seconds))
    return ends


@pytest.mark.usefixtures("last_core")
def test_a_thread_that_wakes_another_still_has_its_core() -> None:
    simulation, ends = Simulation(), dict[str, float]()
    host = Host(simulation, cores=2)

    def task(name: str, work_s: float, *woken: Process) -> Process:
        yield host.thread().work(work_s)
        ends[name] = simulation.now_s
        for one in woken:
            simulation.start(one)

    # "late" joins "busy" on the second core, although the first one becomes idle just then.
    simulation.start(task("waker", 1.0e-3, task("late", 1.0e-3)))
    simulation.start(task("busy", 2.0e-3))
    simulation.run(lambda: len(ends) == 3)
    assert ends == pytest.approx({"waker": 1e-3, "busy": 3e-3, "late": 3e-3})


def test_processes_that_take_turns_on_a_core_use_more_processor_time() -> None:
    crowded = dataclasses.replace(JOB, crowding=Crowding(displaced=0.2))
    for workers, added in ((1, 0.0), (2, 0.0), (8, 0.15)):  # on two cores
        here = FleetShape(workers=workers, servers=1, worker_cores=2, server_cores=2)
        free, slow = (predict("half_async", job, here, COSTS) for job in (JOB, crowded))
        assert slow.examples_per_s * (1 + added) == pytest.approx(free.examples_per_s, rel=0.02)
        assert slow.worker_busy == pytest.approx(free.worker_busy, rel=0.02)


def test_geo_exchanges_at_its_default_interval_for_the_number_of_workers() -> None:
    fixed = [dataclasses.replace(JOB, exchange_steps=steps) for steps in (10, 100)]
    few, many = cluster(2, 1), cluster(40, 4)
    by_default = [predict("geo", JOB, fleet, COSTS).bytes_per_example for fleet in (few, many)]
    assert by_default[0] == predict("geo", fixed[1], few, COSTS).bytes_per_example
    assert by_default[1] == predict("geo", fixed[0], many, COSTS).bytes_per_example
    assert by_default[1] > 2 * predict("geo", fixed[1], many, COSTS).bytes_per_example


def test_work_on_all_cores_of_a_machine_is_slower_than_alone() -> None:
    crowded = dataclasses.replace(JOB, crowding=Crowding(neighbours=0.3))
    alone, full = (predict("geo", crowded, cluster(count, 1), COSTS) for count in (1, 8))
    assert full.examples_per_s / 8 == pytest.approx(alone.examples_per_s / 1.3, rel=0.05)
    with pytest.raises(ConfigError, match=r"Crowding\.displaced"):
        Crowding(displaced=-1.0)


def test_cores_that_others_use_are_missing_on_a_shared_machine() -> None:
    free, shared = (
        predict(
            "async",
            JOB,
            FleetShape(workers=4, servers=1, worker_cores=2, busy_cores=busy),
            COSTS,
        ).examples_per_s
        for busy in (0.0, 1.0)
    )
    assert shared == pytest.approx(free / 2, rel=0.1)


def test_threads_of_a_server_share_the_adding_of_wide_rows() -> None:
    job = dataclasses.replace(JOB, row_floats=300, compute_s=1e-3)
    one, eight = (
        predict(
            "sync",
            job,
            FleetShape(
                workers=64,
                servers=1,
                network_bytes_per_s=gbit(1000),
                worker_cores=8,
                server_cores=cores,
            ),
            COSTS,
        ).examples_per_s
        for cores in (1, 8)
    )
    assert eight > 4 * one


def test_bytes_beyond_the_near_cache_cost_more() -> None:
    """Rows of the same total size in one large step instead of several small ones."""
    wide = dataclasses.replace(JOB, keys=2_000, row_floats=300, dense=0, compute_s=1e-6)
    large = dataclasses.replace(wide, ids=130_000, keys=20_000, batch=10 * wide.batch)
    here = FleetShape(workers=1, servers=1, worker_cores=8)
    small_rate, large_rate = (
        predict("half_async", job, here, COSTS).examples_per_s for job in (wide, large)
    )
    assert large_rate < 0.9 * small_rate


def test_keys_that_workers_have_in_common_are_applied_once_in_a_round() -> None:
    wide = dataclasses.replace(JOB, keys=2_000, row_floats=300, dense=0, compute_s=1e-3)
    rates = [
        predict(
            "sync", dataclasses.replace(wide, growth=growth), cluster(16, 1, 100), COSTS
        ).examples_per_s
        for growth in (1.0, 0.5)
    ]
    assert rates[1] > 1.02 * rates[0]


def test_steps_that_vary_slow_down_those_who_wait_for_each_other() -> None:
    varied = dataclasses.replace(JOB, variation=0.2)
    sync, half = (predict(mode, varied, cluster(32, 8), COSTS) for mode in ("sync", "half_async"))
    assert sync.examples_per_s < 0.8 * half.examples_per_s


def test_many_workers_are_simulated_by_fewer_with_the_same_result() -> None:
    """From 129 workers on, they are not simulated one by one."""
    one_by_one, grouped = (
        predict("half_async", JOB, cluster(count, 16), COSTS) for count in (128, 136)
    )
    each = one_by_one.examples_per_s / 128
    assert grouped.examples_per_s / 136 == pytest.approx(each, rel=0.05)


def test_the_same_question_has_the_same_answer() -> None:
    varied = dataclasses.replace(JOB, variation=0.1)
    first, second = (predict("sync", varied, cluster(16, 4), COSTS) for _ in range(2))
    assert first == second


def test_unknown_modes_and_impossible_steps_are_rejected() -> None:
    with pytest.raises(ConfigError, match="mode must be one of sync"):
        predict("fast", JOB, cluster(1, 1), COSTS)
    with pytest.raises(ConfigError, match="keys must be <= ids"):
        dataclasses.replace(JOB, keys=20_000)
    with pytest.raises(ConfigError, match="workers"):
        cluster(0, 1)
