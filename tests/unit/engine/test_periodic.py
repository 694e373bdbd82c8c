"""Calls that are made periodically while a pass runs."""

from __future__ import annotations

import threading

from sparsefleet.engine.events import Events, Failed, Periodic

DEADLINE_S = 30.0


def test_calls_come_again_and_again_until_they_are_stopped() -> None:
    third = threading.Event()
    seen: list[str] = []

    def call() -> None:
        seen.append(threading.current_thread().name)
        if len(seen) == 3:
            third.set()

    periodic = Periodic(0.001, call, name="looking")
    periodic.start()
    assert third.wait(DEADLINE_S)
    periodic.stop()
    count = len(seen)
    assert set(seen) == {"looking"}
    assert all(thread.name != "looking" for thread in threading.enumerate())
    periodic.stop()
    assert len(seen) == count


def test_it_can_start_again_and_ends_with_a_failure() -> None:
    called = threading.Event()
    periodic = Periodic(0.001, called.set, name="looking")
    events = Events()
    periodic.attach(events)
    for _ in range(2):
        called.clear()
        periodic.start()
        assert called.wait(DEADLINE_S)
        events.emit(Failed(ValueError("of a training thread")))
        assert all(thread.name != "looking" for thread in threading.enumerate())


def test_it_stops_before_the_first_call() -> None:
    called: list[int] = []
    periodic = Periodic(DEADLINE_S, lambda: called.append(1), name="looking")
    periodic.start()
    periodic.stop()
    assert called == []
