from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet.errors import ConfigError, DataError
from sparsefleet.fluid.paddle import reader
from sparsefleet.fluid.paddle.reader import ResumableReader


def numbers(count: int, first: int = 0) -> Callable[[], Iterator[int]]:
    return lambda: iter(range(first, first + count))


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state as a checkpoint would store it."""
    copy: dict[str, Any] = json.loads(json.dumps(state))
    return copy


ORDERED: dict[str, Callable[[], ResumableReader]] = {
    "function": lambda: reader.resumable(numbers(23)),
    "map": lambda: reader.map_readers(lambda a, b: a * b, numbers(23), numbers(19)),
    "chain": lambda: reader.chain(numbers(7), numbers(0), numbers(9, 50), numbers(4, 90)),
    "firstn": lambda: reader.firstn(numbers(23), 17),
    "compose": lambda: reader.compose(numbers(13), reader.chain(numbers(6), numbers(7))),
    "cache": lambda: reader.cache(reader.shuffle(numbers(23), 10)),
    "buffered": lambda: reader.buffered(numbers(23), 5),
    "batch": lambda: reader.batch(numbers(23), 4),
    "xmap": lambda: reader.xmap_readers(lambda n: n * n, numbers(23), 3, 4, order=True),
    "shuffle": lambda: reader.shuffle(numbers(23), 6),
    "shuffles": lambda: reader.chain(
        reader.shuffle(numbers(11), 4), reader.shuffle(numbers(9, 50), 100)
    ),
    "pipeline": lambda: reader.batch(
        reader.buffered(
            reader.shuffle(reader.map_readers(lambda n: n + 1, reader.shuffle(numbers(23), 7)), 5),
            3,
        ),
        4,
        drop_last=True,
    ),
}


@pytest.mark.parametrize("name", ORDERED)
def test_resumes_at_the_very_item_in_the_same_order(name: str) -> None:
    whole = ORDERED[name]()
    fresh = saved(whole.state_dict())
    passes = [list(whole()) for _ in range(3)]
    for stop in range(len(passes[1]) + 1):
        first = ORDERED[name]()
        first.load_state_dict(fresh)  # the same seeds
        assert list(first()) == passes[0]
        items = first()
        assert list(islice(items, stop)) == passes[1][:stop]
        state = saved(first.state_dict())
        second = ORDERED[name]()
        second.load_state_dict(state)
        assert saved(second.state_dict()) == state
        assert list(second()) == passes[1][stop:]
        assert list(second()) == passes[2]


@pytest.mark.parametrize("name", ORDERED)
def test_the_state_at_the_end_is_that_of_the_next_pass(name: str) -> None:
    whole = ORDERED[name]()
    fresh = saved(whole.state_dict())
    passes = [list(whole()) for _ in range(2)]
    first = ORDERED[name]()
    first.load_state_dict(fresh)
    list(first())
    second = ORDERED[name]()
    second.load_state_dict(saved(first.state_dict()))
    assert list(second()) == passes[1]


UNORDERED: dict[str, Callable[[], ResumableReader]] = {
    "xmap": lambda: reader.xmap_readers(lambda n: n, numbers(40), 3, 5),
    "multiprocess": lambda: reader.multiprocess_reader([numbers(25), numbers(15, 25)]),
    "queue": lambda: reader.multiprocess_reader([numbers(25), numbers(15, 25)], use_pipe=False),
}


@pytest.mark.parametrize("name", UNORDERED)
@pytest.mark.parametrize("stops", [(0,), (1, 1), (13, 9, 5), (40,)])
def test_no_item_is_lost_or_doubled_where_there_is_no_order(
    name: str, stops: tuple[int, ...]
) -> None:
    found: Counter[int] = Counter()
    state = None
    for stop in stops:
        made = UNORDERED[name]()
        if state is not None:
            made.load_state_dict(state)
        items = made()
        found.update(islice(items, stop))
        state = saved(made.state_dict())
        del items
    last = UNORDERED[name]()
    assert state is not None
    last.load_state_dict(state)
    found.update(last())
    assert found == Counter(range(40))


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 30),
    st.integers(1, 9),
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
    st.integers(0, 2**30),
)
def test_any_number_of_stops_changes_nothing(
    count: int, size: int, stops: list[int], seed: int
) -> None:
    def make() -> ResumableReader:
        return reader.xmap_readers(
            lambda n: -n, reader.shuffle(numbers(count), size, seed=seed), 2, 3, order=True
        )

    found: list[int] = []
    state = make().state_dict()
    for stop in stops:
        made = make()
        made.load_state_dict(saved(state))
        found += islice(made(), stop)
        state = made.state_dict()
        if state["pass"] == 1:
            break
    else:
        made = make()
        made.load_state_dict(saved(state))
        found += made()
    assert found == list(make()())


def test_unordered_results_that_overtook_are_not_given_again() -> None:
    """The first item is slow: items that others delivered before it must not be repeated."""
    overtaken = threading.Event()

    def slow_first(number: int) -> int:
        if number == 0:
            assert overtaken.wait(60)
        return number

    first = reader.xmap_readers(slow_first, numbers(6), 2, 6)
    items = first()
    assert sorted(islice(items, 3)) == [1, 2, 3]
    state = saved(first.state_dict())
    assert state["position"] == [None, [1, 2, 3]]
    overtaken.set()
    second = reader.xmap_readers(slow_first, numbers(6), 1, 6)
    second.load_state_dict(state)
    items = second()
    assert next(items) == 0
    again = reader.xmap_readers(slow_first, numbers(6), 2, 6)
    again.load_state_dict(saved(second.state_dict()))
    assert sorted(again()) == [4, 5]


def test_states_of_other_readers_are_refused() -> None:
    state = reader.shuffle(numbers(5), 4).state_dict()
    reader.shuffle(numbers(5), 4).load_state_dict(state)
    with pytest.raises(
        ConfigError, match=r"shuffle by 4\(function\(\)\), but this reader is shuffle by 5"
    ):
        reader.shuffle(numbers(5), 5).load_state_dict(state)
    with pytest.raises(ConfigError, match="expected the state of a reader"):
        reader.shuffle(numbers(5), 4).load_state_dict({"version": 9})
    with pytest.raises(ConfigError, match="expected the state of a reader"):
        reader.shuffle(numbers(5), 4).load_state_dict({**state, "seeds": 7})
    with pytest.raises(ConfigError, match="the state has 0 seeds, expected 1"):
        reader.shuffle(numbers(5), 4).load_state_dict({**state, "seeds": []})


def test_data_that_has_become_shorter_is_an_error() -> None:
    made = reader.resumable(numbers(9))
    state = {**made.state_dict(), "position": 8}
    made.load_state_dict(state)
    assert list(made()) == [8]
    shorter = reader.resumable(numbers(5))
    shorter.load_state_dict(state)
    with pytest.raises(DataError, match="ended after 5 items, but 8 were read"):
        list(shorter())


@pytest.mark.parametrize("name", ORDERED)
def test_resuming_after_a_finished_pass_gives_nothing_and_then_the_next_pass(name: str) -> None:
    whole = ORDERED[name]()
    assert whole.finished_state_dict() == whole.state_dict()
    items = whole()
    next(items)
    assert whole.finished_state_dict() == whole.state_dict()
    assert list(items)
    assert whole.finished_state_dict() != whole.state_dict()
    second = ORDERED[name]()
    second.load_state_dict(saved(whole.finished_state_dict()))
    assert list(second()) == []
    assert list(second()) == list(whole())


def test_another_batch_size_resumes_at_the_record() -> None:
    first = reader.batch(numbers(10), 4)
    items = first()
    assert next(items) == [0, 1, 2, 3]
    second = reader.batch(numbers(10), 3)
    second.load_state_dict(first.state_dict())
    assert list(second()) == [[4, 5, 6], [7, 8, 9]]


def test_a_shuffled_buffer_that_has_become_shorter_is_refused() -> None:
    first = reader.shuffle(lambda: iter(range(8)), 8, seed=1)
    items = first()
    for _ in range(5):
        next(items)
    for length in (0, 3, 5):
        again = reader.shuffle(lambda length=length: iter(range(length)), 8, seed=1)
        again.load_state_dict(first.state_dict())
        with pytest.raises(DataError, match="the data has changed"):
            list(again())
