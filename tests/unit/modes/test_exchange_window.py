"""Windows of mini-batches between exchanges."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from sparsefleet.errors import DeadlineError
from sparsefleet.modes.exchange_window import ExchangeWindows, Window


def keys(*values: int) -> dict[str, np.ndarray]:
    return {"rows": np.array(values, np.uint64)}


def test_touched_keys_come_once_each() -> None:
    window = Window()
    window.add(keys(7, 2**64 - 1, 3))
    window.add(keys())
    window.add(keys(3, 7, 1))
    ((table, touched),) = window.touched()
    assert (table, touched.tolist()) == ("rows", [1, 3, 7, 2**64 - 1])
    assert window.steps == 3


def test_a_window_without_keys_touches_nothing() -> None:
    window = Window()
    window.add(keys())
    assert [touched.tolist() for _, touched in window.touched()] == [[]]


def test_training_goes_on_while_a_window_is_exchanged_but_not_further_than_one() -> None:
    windows = ExchangeWindows(2, wait_s=20)
    for value in range(4):
        windows.add(keys(value))
    assert windows.open_steps == 4
    added = threading.Event()

    def add_fifth() -> None:
        windows.add(keys(4))
        added.set()

    adder = threading.Thread(target=add_fifth, daemon=True)
    adder.start()
    first = windows.next_full()
    assert first is not None
    assert first.steps == 2
    assert not added.is_set()
    windows.exchanged()
    assert added.wait(20)
    second = windows.next_full()
    assert second is not None
    assert [touched.tolist() for _, touched in second.touched()] == [[2, 3]]
    adder.join(20)


def test_the_wait_for_an_exchange_has_a_deadline() -> None:
    windows = ExchangeWindows(1, wait_s=0.05)
    windows.add(keys(1))
    windows.add(keys(2))
    with pytest.raises(DeadlineError, match="exchange of 1 mini-batches"):
        windows.add(keys(3))
    with pytest.raises(DeadlineError, match="not over within"):
        windows.take_rest()


def test_a_closed_queue_of_windows_ends_the_exchanging_thread() -> None:
    windows = ExchangeWindows(1, wait_s=1)
    windows.close()
    assert windows.next_full() is None
