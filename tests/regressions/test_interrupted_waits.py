"""Ctrl-C ends a wait: the waiting call is not counted afterwards."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from tests.support.servers import NativeServers

from sparsefleet.errors import DeadlineError
from sparsefleet.store import LocalStore, Store


@pytest.fixture(params=["local", "remote"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "local":
        with LocalStore() as made:
            yield made
        return
    with NativeServers(1) as servers, servers.connect() as made:
        yield made


def _interrupt_soon() -> threading.Timer:
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def test_an_interrupted_barrier_call_does_not_count_as_a_member(store: Store) -> None:
    timer = _interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        store.barrier("b", 2, timeout_s=60.0)
    timer.join()
    with pytest.raises(DeadlineError, match="1 of 2"):
        store.barrier("b", 2, timeout_s=0.5)


def test_a_wait_for_a_note_can_be_interrupted(store: Store) -> None:
    timer = _interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        store.get_note("never", wait=True, timeout_s=60.0)
    timer.join()
    store.put_note("never", b"after all")
    assert store.get_note("never") == b"after all"
