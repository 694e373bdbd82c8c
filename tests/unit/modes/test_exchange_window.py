"""Windows of mini-batches between exchanges."""

from __future__ import annotations

import threading

import pytest

from sparsefleet.errors import DeadlineError
from sparsefleet.modes.geo import ExchangeWindows


def test_training_continues_while_a_window_is_exchanged_but_not_further_than_one() -> None:
    windows = ExchangeWindows(2, wait_s=20)
    for _ in range(4):
        windows.add()
    assert windows.open_steps == 4
    added = threading.Event()

    def add_fifth() -> None:
        windows.add()
        added.set()

    adder = threading.Thread(target=add_fifth, daemon=True)
    adder.start()
    assert windows.next_full() == 2
    assert not added.is_set()
    windows.exchanged()
    assert added.wait(20)
    assert windows.next_full() == 2
    windows.exchanged()
    assert windows.take_rest() == 1
    assert windows.take_rest() == 0
    adder.join(20)


def test_the_wait_for_an_exchange_has_a_deadline() -> None:
    windows = ExchangeWindows(1, wait_s=0.05)
    windows.add()
    windows.add()
    with pytest.raises(DeadlineError, match="exchange of 1 mini-batches"):
        windows.add()
    with pytest.raises(DeadlineError, match="did not finish within"):
        windows.take_rest()


def test_a_closed_queue_of_windows_ends_the_exchanging_thread() -> None:
    windows = ExchangeWindows(1, wait_s=1)
    windows.close()
    assert windows.next_full() == 0


def _sizes(windows: ExchangeWindows, steps: int) -> list[int]:
    """Return the sizes of all windows of so many mini-batches, each exchanged at once."""
    sizes = []
    for _ in range(steps):
        windows.add()
        if windows._full:
            sizes.append(windows.next_full())
            windows.exchanged()
    return sizes


def test_without_an_interval_windows_grow_with_the_mini_batches_so_far() -> None:
    windows = ExchangeWindows(None, wait_s=20)
    sizes = _sizes(windows, 12_000)
    assert sizes[:199] == [1] * 199
    assert sizes[199] == 2
    assert sizes == sorted(sizes)
    assert sizes[-1] == 100
    assert sum(sizes) + windows.take_rest() == 12_000


@pytest.mark.parametrize(("others", "largest"), [(0, 100), (1, 100), (4, 25), (99, 10), (1000, 10)])
def test_windows_are_smaller_the_more_workers_add_up_their_changes(
    others: int, largest: int
) -> None:
    assert _sizes(ExchangeWindows(None, others=others, wait_s=20), 12_000)[-1] == largest
    assert _sizes(ExchangeWindows(7, others=others, wait_s=20), 70) == [7] * 10


def test_windows_continue_where_an_earlier_part_of_the_training_ended() -> None:
    windows = ExchangeWindows(None, begun=10_000, wait_s=20)
    for _ in range(99):
        windows.add()
    assert not windows._full
    windows.add()
    assert windows._full == 100
