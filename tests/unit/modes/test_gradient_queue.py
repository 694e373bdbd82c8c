"""The queue between training threads and the sender."""

from __future__ import annotations

import threading

import pytest

from sparsefleet.errors import DeadlineError
from sparsefleet.modes import StepGradients
from sparsefleet.modes.gradient_queue import GradientQueue


def test_copies_come_out_in_order_and_at_most_so_many() -> None:
    queue = GradientQueue(5, wait_s=20)
    copies = [StepGradients() for _ in range(5)]
    for copy in copies:
        queue.put(copy)
    taken = queue.take(3, 0.0) + queue.take(3, 0.0)
    assert all(a is b for a, b in zip(taken, copies, strict=True))


def test_a_full_queue_blocks_until_one_is_taken() -> None:
    queue = GradientQueue(1, wait_s=20)
    queue.put(StepGradients())
    putter = threading.Thread(target=queue.put, args=(StepGradients(),), daemon=True)
    putter.start()
    assert len(queue.take(2, 20.0)) == 2  # lingers for the one that had to wait
    putter.join(20)


def test_the_wait_for_room_has_a_deadline_that_says_so() -> None:
    queue = GradientQueue(1, wait_s=0.05)
    queue.put(StepGradients())
    with pytest.raises(DeadlineError, match="1 mini-batches not yet applied.*room in the queue"):
        queue.put(StepGradients())
    with pytest.raises(DeadlineError, match="what was handed over"):
        queue.wait_empty()


def test_a_failure_ends_every_wait_and_empties_nothing() -> None:
    queue = GradientQueue(1, wait_s=20)
    queue.put(StepGradients())
    queue.fail(ValueError("gone"))
    assert queue.take(1, 0.0) == []
    for call in (lambda: queue.put(StepGradients()), queue.wait_empty, queue.raise_failure):
        with pytest.raises(ValueError, match="gone"):
            call()


def test_a_closed_queue_gives_what_it_has_and_then_nothing() -> None:
    queue = GradientQueue(2, wait_s=20)
    queue.put(StepGradients())
    queue.close()
    assert len(queue.take(5, 20.0)) == 1
    assert queue.take(5, 20.0) == []
