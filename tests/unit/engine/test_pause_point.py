from __future__ import annotations

import threading

import pytest

from sparsefleet.engine.saving import PausePoint

WAIT_S = 20.0


class CountedPoints:
    """Requests a save after every `every` steps and records the steps at which it was made."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.last = 0
        self.steps: list[list[int]] = []
        self.at: dict[int, int] = {}

    def is_due(self, step: int) -> bool:
        return step - self.last >= self.every

    def run(self) -> None:
        self.steps.append(list(self.at.values()))
        self.last = max(self.at.values())


def run_threads(gate: PausePoint, points: CountedPoints, lengths: list[int]) -> None:
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(lengths))

    def train(index: int, length: int) -> None:
        points.at[index] = 0
        barrier.wait(WAIT_S)
        try:
            for step in range(length):
                gate.reach(step, has_ahead=False)
                points.at[index] = step + 1
            gate.leave()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=train, args=(index, length), daemon=True)
        for index, length in enumerate(lengths)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), "a thread hangs at the gate"
    assert not errors


def test_one_thread_stops_after_every_so_many_steps() -> None:
    points = CountedPoints(3)
    gate = PausePoint(1, points, steps_together=True, wait_s=WAIT_S)
    run_threads(gate, points, [10])
    assert points.steps == [[3], [6], [9]]


def test_a_save_after_every_step_is_possible() -> None:
    points = CountedPoints(1)
    gate = PausePoint(1, points, steps_together=True, wait_s=WAIT_S)
    run_threads(gate, points, [4])
    assert points.steps == [[1], [2], [3]]


def test_a_thread_that_has_read_ahead_trains_on_it_before_it_stops() -> None:
    points = CountedPoints(1)
    gate = PausePoint(1, points, steps_together=False, wait_s=WAIT_S)
    points.at[0] = 1
    assert gate.reach(1, has_ahead=True) is False
    assert points.steps == []
    points.at[0] = 2
    assert gate.reach(2, has_ahead=False) is True
    assert points.steps == [[2]]


def test_threads_that_step_together_are_notified_one_step_ahead() -> None:
    points = CountedPoints(2)
    gate = PausePoint(1, points, steps_together=True, wait_s=WAIT_S)
    points.at[0] = 0
    assert gate.reach(0, has_ahead=False) is True
    assert gate.reach(1, has_ahead=True) is False, "the next step is the last before the save"
    points.at[0] = 2
    assert gate.reach(2, has_ahead=False) is True
    assert points.steps == [[2]]
    assert gate.reach(2, has_ahead=False) is True, "a batch that was skipped is no second save"
    assert points.steps == [[2]]


@pytest.mark.parametrize("lengths", [[8, 8], [8, 3, 5], [1, 9]])
def test_free_threads_stop_wherever_they_are(lengths: list[int]) -> None:
    points = CountedPoints(4)
    gate = PausePoint(len(lengths), points, steps_together=False, wait_s=WAIT_S)
    run_threads(gate, points, lengths)
    assert points.steps


def test_a_failure_wakes_those_who_have_stopped() -> None:
    points = CountedPoints(1)
    gate = PausePoint(2, points, steps_together=False, wait_s=WAIT_S)
    points.at[0] = 0
    raised: list[BaseException] = []

    def stop() -> None:
        try:
            gate.reach(1, has_ahead=False)
        except BaseException as error:
            raised.append(error)

    waiting = threading.Thread(target=stop, daemon=True)
    waiting.start()
    gate.fail(RuntimeError("the other thread"))
    waiting.join(WAIT_S)
    assert [str(error) for error in raised] == ["the other thread"]
