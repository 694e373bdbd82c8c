from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import active_children

import numpy as np
import pytest

from sparsefleet.errors import DataError
from sparsefleet.fluid.paddle.reader import batch, multiprocess_reader, shuffle

both = pytest.mark.parametrize("use_pipe", [True, False])


def children() -> list[str]:
    names = [child.name for child in active_children()]
    return [name for name in names if name.startswith("sparsefleet-reader")]


def numbers(first: int, count: int) -> Callable[[], Iterator[int]]:
    return lambda: iter(range(first, first + count))


@both
def test_gives_every_item_once_and_in_the_order_of_its_reader(use_pipe: bool) -> None:
    made = multiprocess_reader([numbers(0, 300), numbers(300, 5), numbers(305, 0)], use_pipe, 7)
    for _ in range(2):
        found = list(made())
        assert Counter(found) == Counter(range(305))
        assert [item for item in found if item < 300] == list(range(300))
    assert children() == []


@both
def test_items_may_be_anything_that_multiprocessing_can_send(use_pipe: bool) -> None:
    items = [None, np.arange(100_000, dtype=np.uint8), ("a", [1.5])]
    found = list(multiprocess_reader([lambda: iter(items)], use_pipe)())
    assert found[0] is None
    assert found[1].dtype == np.uint8
    assert (found[1] == items[1]).all()
    assert found[2] == ("a", [1.5])


def test_shuffles_and_batches_within_the_children() -> None:
    made = multiprocess_reader([batch(shuffle(numbers(0, 20), 20, seed=1), 6)])
    found = list(made())
    assert [len(one) for one in found] == [6, 6, 6, 2]
    assert sorted(item for one in found for item in one) == list(range(20))
    assert list(made()) != found


class UnsendableError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


@both
@pytest.mark.parametrize(
    ("error", "kind"),
    [(KeyError("no such slot"), KeyError), (UnsendableError("no such ", "slot"), DataError)],
)
def test_an_error_of_a_reader_is_raised_with_its_traceback(
    use_pipe: bool, error: Exception, kind: type[Exception]
) -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise error

    items = multiprocess_reader([failing], use_pipe)()
    assert next(items) == 1
    with pytest.raises(kind, match="no such slot") as caught:
        next(items)
    said = str(caught.value if kind is DataError else caught.value.__cause__)
    assert "reader 0 of multiprocess_reader" in said
    assert "in failing" in said
    assert children() == []


def test_an_item_that_cannot_be_sent_is_an_error() -> None:
    with pytest.raises(Exception, match="pickle"):
        list(multiprocess_reader([lambda: iter([lambda: 1])])())
    assert children() == []


@both
def test_a_child_that_dies_is_an_error_that_names_it(use_pipe: bool) -> None:
    def dying() -> Iterator[int]:
        yield 1
        os.kill(os.getpid(), signal.SIGKILL)

    items = multiprocess_reader([numbers(5, 0), dying], use_pipe)()
    assert next(items) == 1
    with pytest.raises(DataError, match=r"process \d+ of reader 1 died with exit code -9"):
        next(items)
    assert children() == []


@both
def test_a_child_that_is_stuck_is_an_error_after_the_deadline(use_pipe: bool) -> None:
    def stuck() -> Iterator[int]:
        signal.pause()
        yield 1

    with pytest.raises(DataError, match=r"reader\(s\) \[0\] within 0.2 s|no batch arrived"):
        next(multiprocess_reader([stuck], use_pipe, wait_s=0.2)())
    assert children() == []


@both
def test_children_end_when_the_loop_is_left_early(use_pipe: bool) -> None:
    def endless() -> Iterator[int]:
        while True:
            yield os.getpid()

    items = multiprocess_reader([endless, endless], use_pipe, 5)()
    pids = {next(items)}
    del items
    assert children() == []
    assert all(is_gone(pid) for pid in pids)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_children_end_when_their_parent_is_killed() -> None:
    """If no sibling holds its pipe open, a child's next item fails with a broken pipe."""
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:

        def endless() -> Iterator[bytes]:
            os.write(writing, f"{os.getpid()}\n".encode())
            while True:
                yield b"x" * 10_000

        made = multiprocess_reader([endless, endless])()
        for _ in range(4):
            next(made)
        signal.pause()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        pids = [int(told.readline()), int(told.readline())]
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        assert told.read() == "", "ends when both children have closed their copies"
    deadline = time.monotonic() + 30
    while not all(map(is_gone, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Return whether it has ended; a zombie that was not reaped yet counts."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True
