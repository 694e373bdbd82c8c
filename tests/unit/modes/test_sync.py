"""Mode "sync": one step of all threads of all workers, with the mean gradient."""

from __future__ import annotations

import pytest
from tests.support.mode_workers import ModeWorkers, gradients

from sparsefleet.errors import PeerLostError, WorkerError
from sparsefleet.modes.mode import Mode


def test_each_step_moves_by_the_mean_of_all_workers() -> None:
    seen: dict[int, list[float]] = {0: [], 1: []}
    with ModeWorkers("sync", workers=2, servers=2) as job:

        def script(mode: Mode, worker: int, _thread: int) -> None:
            for _ in range(3):
                mode.hand_over(gradients([1.0, 3.0][worker], {7: [1.0, 3.0][worker]}))
                seen[worker].append(float(job.live[worker][0]))

        job.run(script)
        assert seen[0] == pytest.approx([-0.2, -0.4, -0.6])
        assert seen[1] == seen[0]
        assert job.row() == pytest.approx(-0.6)


def test_the_mean_is_over_workers_of_the_means_over_their_threads() -> None:
    def script(mode: Mode, worker: int, thread: int) -> None:
        mode.hand_over(gradients(1.0 + worker + 2 * thread, {thread: 1.0}))

    with ModeWorkers("sync", workers=2, threads=2) as job:
        job.run(script)
        assert job.net() == pytest.approx(-0.25)  # mean of mean(1, 3) and mean(2, 4)
        assert job.row(0) == pytest.approx(-0.05)
        assert [mode.stats().pushes for mode in job.modes] == [1, 1]
        assert [mode.stats().merge_factor for mode in job.modes] == [2.0, 2.0]


def test_a_worker_with_fewer_batches_leaves_and_the_mean_is_over_who_delivered() -> None:
    def script(mode: Mode, worker: int, thread: int) -> None:
        for _ in range([1, 3][worker]):
            mode.hand_over(gradients([1.0, 3.0][worker]))
        mode.leave()

    with ModeWorkers("sync", workers=2) as job:
        job.run(script)
        assert job.net() == pytest.approx(-0.2 - 0.3 - 0.3)
        job.each(lambda mode: mode.rejoin())
        job.run(script)
        assert job.net() == pytest.approx(-1.6)
        job.each(lambda mode: mode.finish())


def test_a_worker_without_any_data_holds_up_nobody() -> None:
    def script(mode: Mode, worker: int, thread: int) -> None:
        for _ in range([0, 2][worker]):
            mode.hand_over(gradients(1.0))
        mode.leave()

    with ModeWorkers("sync", workers=2, threads=2) as job:
        for _ in range(3):
            job.run(script)
            job.each(lambda mode: mode.rejoin())
        assert job.net() == pytest.approx(-0.6)


def test_uneven_threads_and_workers_all_end() -> None:
    def script(mode: Mode, worker: int, thread: int) -> None:
        for _ in range(1 + 2 * worker + thread):
            mode.hand_over(gradients(1.0))
        mode.leave()

    with ModeWorkers("sync", workers=3, threads=2) as job:
        job.run(script)
        assert job.net() == pytest.approx(-0.6)
        assert [mode.stats().steps for mode in job.modes] == [3, 7, 11]


def test_a_failing_thread_wakes_the_threads_of_its_worker() -> None:
    caught: list[BaseException] = []

    def script(mode: Mode, worker: int, thread: int) -> None:
        if thread == 1:
            raise ValueError("bad batch")
        try:
            mode.hand_over(gradients(1.0))
        except WorkerError as error:
            caught.append(error)

    with ModeWorkers("sync", threads=3) as job:
        with pytest.raises(ValueError, match="bad batch"):
            job.run(script)
        assert len(caught) == 2


def test_a_lost_worker_ends_the_training_of_the_others_by_name() -> None:
    def script(mode: Mode, worker: int, thread: int) -> None:
        if worker == 1:
            job.stores[1].close()
            return
        mode.hand_over(gradients(1.0))

    with ModeWorkers("sync", workers=2, servers=2) as job:
        with pytest.raises(PeerLostError, match="worker-1"):
            job.run(script)


def test_others_continue_without_a_lost_worker_if_configured() -> None:
    def script(mode: Mode, worker: int, thread: int) -> None:
        if worker == 1:
            job.stores[1].close()  # may have been closed before
            return
        for _ in range(2):
            mode.hand_over(gradients(1.0))
        mode.leave()

    with ModeWorkers("sync", workers=3, servers=2, continue_without_lost=True) as job:
        job.run(script)
        assert job.net() == pytest.approx(-0.2)
        for passes in range(2, 5):  # nor do they wait for it in a later pass
            job.run(lambda mode, worker, _thread: mode.rejoin() if worker != 1 else None)
            job.run(script)
            assert job.net() == pytest.approx(-0.2 * passes)
