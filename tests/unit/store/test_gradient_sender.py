"""The background sender as Python sees it; core/store/gradient_sender_test.cc has the rest."""

from __future__ import annotations

import gc
import logging
import signal
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from sparsefleet.errors import ConfigError, DeadlineError, ShapeError, UnknownTableError
from sparsefleet.optim import SGD
from sparsefleet.store import Constant, DenseSpec, LocalStore, TableSpec
from sparsefleet.store.gradient_sender import GradientSender, SenderConfig

KEY = np.array([7], np.uint64)
ONE = np.ones((1, 1), np.float32)
BATCH = {"rows": (KEY, ONE)}


@pytest.fixture
def store() -> Iterator[LocalStore]:
    with LocalStore() as made:
        made.define(TableSpec(name="rows", dim=1, optimizer=SGD(lr=1.0), initializer=Constant(0.0)))
        made.define(DenseSpec(name="net", size=2, optimizer=SGD(lr=1.0)))
        yield made


class Gate:
    """Blocks the sender's thread after a push until it is released."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.opened = threading.Event()

    def __call__(self, _count: int) -> None:
        self.arrived.set()
        assert self.opened.wait(60)


def test_the_wait_for_room_has_a_deadline_that_says_so(store: LocalStore) -> None:
    gate = Gate()
    sender = store.sender(SenderConfig(on_pushed=gate, wait_s=0.05))
    sender.put(BATCH, {})
    assert gate.arrived.wait(60)
    sender.put(BATCH, {})
    with pytest.raises(DeadlineError, match=r"2 mini-batches not yet applied.*room in the queue"):
        sender.put(BATCH, {})
    with pytest.raises(DeadlineError, match="queued gradients to be pushed"):
        sender.wait_empty()
    gate.opened.set()
    sender.end()


def test_a_full_queue_blocks_until_one_is_taken(store: LocalStore) -> None:
    gate = Gate()
    sender = store.sender(SenderConfig(on_pushed=gate, summed=frozenset(["rows"])))
    sender.put(BATCH, {})
    assert gate.arrived.wait(60)
    sender.put(BATCH, {})
    putter = threading.Thread(target=sender.put, args=(BATCH, {}), daemon=True)
    putter.start()
    gate.opened.set()
    putter.join(60)
    sender.flush()
    assert store.pull("rows", KEY) == -3
    sender.end()


def test_a_failure_ends_every_wait_with_the_very_error(store: LocalStore) -> None:
    gate = Gate()
    sender = store.sender(SenderConfig(on_pushed=gate))
    sender.put(BATCH, {})
    assert gate.arrived.wait(60)
    sender.put(BATCH, {})
    raised: list[BaseException] = []

    def flush() -> None:
        try:
            sender.flush()
        except ValueError as error:
            raised.append(error)

    waiting = threading.Thread(target=flush, daemon=True)
    waiting.start()
    error = ValueError("gone")
    sender.fail(error)
    sender.fail(KeyError("later"))
    waiting.join(60)
    assert raised == [error]
    with pytest.raises(ValueError, match="gone"):
        sender.put(BATCH, {})
    gate.opened.set()
    sender.end()
    assert store.pull("rows", KEY) == -1


def test_the_error_of_a_push_is_raised_by_every_call(store: LocalStore) -> None:
    sender = store.sender(SenderConfig())
    sender.put({"other": (KEY, ONE)}, {})
    for call in (sender.wait_empty, sender.flush, lambda: sender.put(BATCH, {})):
        with pytest.raises(UnknownTableError, match="other"):
            call()
    sender.fail(ValueError("later"))
    with pytest.raises(UnknownTableError, match="other"):
        sender.flush()
    sender.end()


def test_an_error_of_on_pushed_is_raised_as_it_is(store: LocalStore) -> None:
    def fails(count: int) -> None:
        raise ZeroDivisionError(f"no rate after {count}")

    sender = store.sender(SenderConfig(on_pushed=fails))
    sender.put(BATCH, {})
    with pytest.raises(ZeroDivisionError, match="no rate after 1"):
        sender.wait_empty()
    sender.end()


def test_shapes_that_are_known_to_be_wrong_are_refused_at_once(store: LocalStore) -> None:
    sender = store.sender(SenderConfig())
    with pytest.raises(ShapeError, match="'rows'"):
        sender.put({"rows": (KEY, np.ones((1, 2), np.float32))}, {})
    with pytest.raises(ShapeError, match="'net'"):
        sender.put({}, {"net": [np.ones(3, np.float32)]})
    with pytest.raises(ShapeError, match="float32"):
        sender.put({"rows": (KEY, np.ones((1, 1)))}, {})
    sender.flush()


def test_impossible_settings_are_refused(store: LocalStore) -> None:
    with pytest.raises(ConfigError, match="queue_size must be >= 1"):
        store.sender(SenderConfig(queue_size=0))


def test_arrays_are_kept_until_they_are_pushed_and_freed_by_a_caller(store: LocalStore) -> None:
    gate = Gate()
    sender = store.sender(SenderConfig(on_pushed=gate, queue_size=3))
    kept = []
    for _ in range(3):
        rows = np.ones((1, 1), np.float32)
        kept.append(weakref.ref(rows))
        sender.put({"rows": (KEY, rows)}, {"net": [np.ones(2, np.float32)]})
        del rows
    assert all(ref() is not None for ref in kept)
    gate.opened.set()
    sender.flush()
    assert all(ref() is None for ref in kept)
    assert store.pull("rows", KEY) == -3
    sender.end()


def test_a_sender_that_nobody_holds_ends_without_sending_the_rest(store: LocalStore) -> None:
    sender = store.sender(SenderConfig(max_merge=9, queue_size=9, linger_s=600.0))
    sender.put(BATCH, {})
    seen = weakref.ref(sender)
    del sender
    gc.collect()
    assert seen() is None
    assert store.pull("rows", KEY, train=False) == 0


class Holder:
    """Fails with an error whose traceback refers back to the sender."""

    def __init__(self, store: LocalStore) -> None:
        self.sender = store.sender(SenderConfig())
        try:
            raise ValueError("gone")
        except ValueError as error:
            self.sender.fail(error)
            self.error = error


def test_a_failed_sender_that_its_error_refers_to_is_collected(store: LocalStore) -> None:
    holder = Holder(store)
    with pytest.raises(ValueError, match="gone"):
        holder.sender.flush()
    seen = weakref.ref(holder)
    del holder
    gc.collect()
    assert seen() is None


def test_rows_skipped_for_nan_are_reported(
    store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    sender = store.sender(SenderConfig())
    with caplog.at_level(logging.WARNING, "sparsefleet.store"):
        sender.put({"rows": (KEY, ONE * np.nan)}, {})
        sender.flush()
    assert "push to rows: 1 gradient rows" in caplog.text
    sender.end()


def test_pushes_of_the_sender_count_as_steps_of_the_store(store: LocalStore) -> None:
    sender = store.sender(SenderConfig())
    sender.put(BATCH, {})
    sender.flush()
    store.push("rows", KEY, ONE)
    assert store.step == 2
    sender.end()


class StopWaitingError(Exception):
    pass


def flush_while_signalled(sender: GradientSender) -> None:
    main = threading.get_ident()
    threading.Thread(target=signal.pthread_kill, args=(main, signal.SIGUSR1)).start()
    sender.flush()


def test_a_signal_ends_the_wait_of_the_main_thread(store: LocalStore) -> None:
    gate = Gate()
    sender = store.sender(SenderConfig(on_pushed=gate, wait_s=600.0))
    sender.put(BATCH, {})
    assert gate.arrived.wait(60)

    def interrupt(number: int, frame: object) -> None:
        raise StopWaitingError

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(StopWaitingError):
            flush_while_signalled(sender)
    finally:
        signal.signal(signal.SIGUSR1, before)
        gate.opened.set()
    sender.end()
