"""Mode "async" with max_staleness: no worker gets too far ahead of the slowest."""

from __future__ import annotations

import threading

import pytest
from tests.support.mode_workers import NET, ModeWorkers, gradients

from sparsefleet.errors import PeerLostError, WorkerError
from sparsefleet.modes import AsyncConfig
from sparsefleet.modes.mode import Mode

WORKERS = 3
STEPS = 12


@pytest.mark.parametrize("bound", [0, 1, 2, 5])
@pytest.mark.parametrize("queue_size", [1, 4])
def test_no_worker_is_further_ahead_than_the_bound(bound: int, queue_size: int) -> None:
    done = [0] * WORKERS
    furthest = [0]
    lock = threading.Lock()

    def script(mode: Mode, worker: int, thread: int) -> None:
        for _ in range(STEPS):
            mode.hand_over(gradients(1.0))
            with lock:
                done[worker] += 1
                # Another may be inside hand_over, one step further than it has noted.
                furthest[0] = max(furthest[0], done[worker] - min(done) - 1)
        mode.leave()

    config = AsyncConfig(max_staleness=bound, queue_size=queue_size, max_merge=2)
    with ModeWorkers(config, workers=WORKERS) as job:
        job.run(script)
        job.each(lambda mode: mode.flush())
        assert furthest[0] <= bound
        assert job.net() == pytest.approx(-0.1 * WORKERS * STEPS, rel=1e-5)


def test_a_fast_worker_waits_at_exactly_the_bound() -> None:
    with ModeWorkers(AsyncConfig(max_staleness=3), workers=2) as job:
        slow, fast = job.modes
        passed = threading.Semaphore(0)

        def run_ahead() -> None:
            for _ in range(5):
                fast.hand_over(gradients(1.0))
                passed.release()

        runner = threading.Thread(target=run_ahead, daemon=True)
        runner.start()
        for _ in range(3):
            assert passed.acquire(timeout=20)
        assert not passed.acquire(timeout=0.2)
        slow.hand_over(gradients(1.0))
        assert passed.acquire(timeout=20)
        slow.hand_over(gradients(1.0))
        assert passed.acquire(timeout=20)
        runner.join(20)


def test_a_worker_that_leaves_holds_nobody_up_and_is_back_in_the_next_pass() -> None:
    def script(mode: Mode, worker: int, thread: int) -> None:
        for _ in range([1, 8][worker]):
            mode.hand_over(gradients(1.0))
        mode.leave()

    with ModeWorkers(AsyncConfig(max_staleness=1), workers=2, threads=2) as job:
        job.run(script)
        job.each(lambda mode: mode.rejoin())
        job.run(script)
        job.each(lambda mode: mode.finish())
        assert job.net() == pytest.approx(-0.1 * 2 * 2 * 9, rel=1e-5)


def lose_the_second(job: ModeWorkers) -> None:
    def script(mode: Mode, worker: int, thread: int) -> None:
        if worker == 1:
            job.stores[1].close()
            return
        for _ in range(20):
            mode.hand_over(gradients(1.0))

    job.run(script)


def test_a_lost_worker_ends_the_wait_for_it() -> None:
    with ModeWorkers(AsyncConfig(max_staleness=1), workers=2) as job:
        with pytest.raises(PeerLostError, match="worker-1"):
            lose_the_second(job)


def test_others_continue_without_a_lost_worker_if_configured() -> None:
    with ModeWorkers(AsyncConfig(max_staleness=1), workers=2, continue_without_lost=True) as job:
        lose_the_second(job)
        job.modes[0].flush()
        assert job.net() == pytest.approx(-2.0, rel=1e-5)


def test_a_failing_thread_ends_the_wait_for_slower_workers() -> None:
    with ModeWorkers(AsyncConfig(max_staleness=0), workers=2, wait_s=1000.0) as job:
        fast = job.modes[1]
        raised: list[BaseException] = []

        def run_ahead() -> None:
            try:
                fast.hand_over(gradients(1.0))
            except WorkerError as error:
                raised.append(error)

        runner = threading.Thread(target=run_ahead, daemon=True)
        runner.start()
        job.stores[0].wait_version(NET, 1)
        fast.fail(ValueError("bad batch"))
        fast.finish()
        runner.join(20)
        assert "bad batch" in str(raised[0])
