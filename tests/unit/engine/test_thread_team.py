from __future__ import annotations

import signal
import threading

import pytest
import torch

from sparsefleet.engine.thread_team import StandingTeam, ThreadTeam, TorchThreads


def team(count: int, *, torch_threads: int = 1, stop_timeout_s: float = 30.0) -> ThreadTeam:
    return ThreadTeam(count, torch_threads=torch_threads, stop_timeout_s=stop_timeout_s)


def test_team_of_one_runs_in_the_calling_thread() -> None:
    seen = []
    team(1).run(lambda _: seen.append(threading.current_thread()), on_failure=print)
    assert seen == [threading.current_thread()]


def test_members_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3)
    met = []
    team(3).run(lambda _: met.append(barrier.wait(30)), on_failure=print)
    assert sorted(met) == [0, 1, 2]


def test_first_error_is_raised_once_and_the_others_are_notified() -> None:
    stop = threading.Event()
    told = []

    def body(index: int) -> None:
        if index == 1:
            raise KeyError("one")
        assert stop.wait(30)
        raise RuntimeError("woken")

    def on_failure(error: BaseException) -> None:
        told.append(error)
        stop.set()

    with pytest.raises(KeyError, match="one") as found:
        team(3).run(body, on_failure)
    assert told == [found.value]
    names = [entry.name for entry in found.traceback]
    assert "body" in names  # the line that raised is in the traceback


def test_error_of_a_team_of_one_is_reported_too() -> None:
    told: list[BaseException] = []

    def body(index: int) -> None:
        raise ValueError(index)

    with pytest.raises(ValueError, match="0") as found:
        team(1).run(body, told.append)
    assert told == [found.value]


def test_member_that_does_not_come_back_is_named_and_left() -> None:
    release = threading.Event()

    def body(index: int) -> None:
        if index == 0:
            raise ValueError("bad")
        release.wait(60)

    with pytest.raises(ValueError, match="bad") as found:
        team(2, stop_timeout_s=0.05).run(body, on_failure=lambda _: None)
    release.set()
    notes = getattr(found.value, "__notes__", None)  # Python 3.10 has none
    if notes is not None:
        assert "sparsefleet-1 did not finish within 0.05 s" in notes[0]


def test_interrupt_in_the_calling_thread_stops_all() -> None:
    stop = threading.Event()

    def body(index: int) -> None:
        if index == 0:
            signal.raise_signal(signal.SIGINT)
        assert stop.wait(30)

    with pytest.raises(KeyboardInterrupt):
        team(2).run(body, on_failure=lambda _: stop.set())


def test_torch_threads_are_set_inside_and_restored() -> None:
    before = torch.get_num_threads()
    seen = []
    with TorchThreads(3):
        team(2, torch_threads=1).run(lambda _: seen.append(torch.get_num_threads()), print)
        assert torch.get_num_threads() == 3
    assert seen == [1, 1]
    assert torch.get_num_threads() == before


def test_standing_team_keeps_its_threads_and_raises_when_all_have_ended() -> None:
    standing = StandingTeam(2, torch_threads=1)
    barrier = threading.Barrier(2)
    ended: list[str] = []

    def meet(answer: str) -> str:
        barrier.wait(30)
        return answer

    def fail() -> str:
        barrier.wait(30)
        raise KeyError("first")

    def end() -> str:
        barrier.wait(30)
        ended.append("second")
        return "second"

    assert standing.run([lambda: meet("a"), lambda: meet("b")]) == ["a", "b"]
    with pytest.raises(KeyError, match="first"):
        standing.run([fail, end])
    assert ended == ["second"]
    assert standing.run([lambda: meet("c"), lambda: meet("d")]) == ["c", "d"]
