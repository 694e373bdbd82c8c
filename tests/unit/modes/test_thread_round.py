"""The threads of one worker meet; any of them may leave or fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from sparsefleet.errors import ConfigError, DeadlineError
from sparsefleet.modes.thread_round import ThreadRound


def run_all(*calls: Callable[[], object]) -> list[object]:
    """Run each on its own thread; return what they return or raise, in order."""
    results: list[object] = [None] * len(calls)

    def play(index: int) -> None:
        try:
            results[index] = calls[index]()
        except BaseException as error:
            results[index] = error

    players = [threading.Thread(target=play, args=(i,), daemon=True) for i in range(len(calls))]
    for player in players:
        player.start()
    for player in players:
        player.join(30)
        assert not player.is_alive()
    return results


class Gathered:
    def __init__(self) -> None:
        self.rounds: list[list[int]] = []

    def __call__(self, items: Sequence[int]) -> None:
        self.rounds.append(sorted(items))


def test_the_work_is_done_once_per_round_with_what_all_brought() -> None:
    gathered = Gathered()
    meeting = ThreadRound(3, gathered, wait_s=20)

    def thread(index: int) -> None:
        for step in range(50):
            meeting.meet(10 * step + index)

    assert run_all(*(lambda i=i: thread(i) for i in range(3))) == [None] * 3
    assert gathered.rounds == [[10 * step + i for i in range(3)] for step in range(50)]


def test_whoever_leaves_last_works_for_those_who_wait() -> None:
    gathered = Gathered()
    meeting = ThreadRound(2, gathered, wait_s=20)
    results = run_all(lambda: meeting.meet(1), meeting.leave)
    assert gathered.rounds == [[1]]
    assert results[1] == 1
    assert meeting.leave() == 0
    with pytest.raises(ConfigError, match="rejoin"):
        meeting.meet(1)
    with pytest.raises(ConfigError, match="left"):
        meeting.leave()
    meeting.rejoin()
    run_all(lambda: meeting.meet(5), lambda: meeting.meet(6))
    assert gathered.rounds[1:] == [[5, 6]]


def test_uneven_threads_never_hang() -> None:
    gathered = Gathered()
    meeting = ThreadRound(4, gathered, wait_s=20)

    def thread(index: int) -> None:
        for _ in range(7 * index):
            meeting.meet(index)
        meeting.leave()

    assert run_all(*(lambda i=i: thread(i) for i in range(4))) == [None] * 4
    assert [len(items) for items in gathered.rounds] == [3] * 7 + [2] * 7 + [1] * 7


def test_an_error_of_the_work_reaches_every_thread() -> None:
    def fail(items: Sequence[int]) -> None:
        raise ValueError("no push")

    meeting = ThreadRound(3, fail, wait_s=20)
    results = run_all(*(lambda: meeting.meet(0) for _ in range(3)))
    assert [str(result) for result in results] == ["no push"] * 3


def test_fail_wakes_those_who_wait_and_all_who_come_later() -> None:
    meeting = ThreadRound(2, Gathered(), wait_s=20)
    results = run_all(lambda: meeting.meet(1), lambda: meeting.fail(ValueError("gone")))
    assert str(results[0]) == "gone"
    with pytest.raises(ValueError, match="gone"):
        meeting.meet(2)


def test_the_wait_for_a_thread_has_a_deadline_that_says_so() -> None:
    meeting = ThreadRound(2, Gathered(), wait_s=0.05)
    with pytest.raises(DeadlineError, match="1 of 2 threads arrived"):
        meeting.meet(1)
