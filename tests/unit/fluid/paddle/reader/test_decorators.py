from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from itertools import chain as chained
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet.errors import ConfigError, DataError
from sparsefleet.fluid.paddle import reader

Items = st.lists(st.integers() | st.tuples(st.integers(), st.integers()) | st.none(), max_size=30)
Size = st.integers(1, 12)


def of(items: list[Any]) -> Callable[[], Iterator[Any]]:
    """A reader of these items."""
    return lambda: iter(items)


@settings(deadline=None, max_examples=40)
@given(Items, Items)
def test_map_readers_is_map(first: list[Any], second: list[Any]) -> None:
    made = reader.map_readers(lambda a, b: (a, b), of(first), of(second))
    assert list(made()) == list(made()) == list(zip(first, second, strict=False))


@settings(deadline=None, max_examples=40)
@given(st.lists(Items, min_size=1, max_size=4))
def test_chain_is_concatenation(parts: list[list[Any]]) -> None:
    assert list(reader.chain(*map(of, parts))()) == list(chained(*parts))


@settings(deadline=None, max_examples=40)
@given(Items, st.integers(0, 40))
def test_firstn_is_a_slice(items: list[Any], n: int) -> None:
    assert list(reader.firstn(of(items), n)()) == items[:n]


@settings(deadline=None, max_examples=40)
@given(Items, Size, st.booleans())
def test_batch_is_groups_of_equal_size(items: list[Any], size: int, drop_last: bool) -> None:
    found = list(reader.batch(of(items), size, drop_last)())
    kept = items[: len(items) // size * size] if drop_last else items
    assert [item for group in found for item in group] == kept
    assert all(len(group) == size for group in found[:-1])
    assert all(len(group) == size for group in found[-1:]) or not drop_last


@settings(deadline=None, max_examples=40)
@given(Items, Size, st.integers(0, 2**40))
def test_shuffle_permutes_within_each_buffer(items: list[Any], size: int, seed: int) -> None:
    made = reader.shuffle(of(items), size, seed=seed)
    found = list(made())
    for begin in range(0, len(items), size):
        buffer = slice(begin, begin + size)
        assert sorted(map(repr, found[buffer])) == sorted(map(repr, items[buffer]))
    assert found == list(reader.shuffle(of(items), size, seed=seed)())


@settings(deadline=None, max_examples=40)
@given(Items, Size)
def test_buffered_and_ordered_xmap_keep_items_and_order(items: list[Any], size: int) -> None:
    assert list(reader.buffered(of(items), size)()) == items
    made = reader.xmap_readers(lambda item: [item], of(items), 3, size, order=True)
    assert list(made()) == list(made()) == [[item] for item in items]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(), max_size=40), Size)
def test_unordered_xmap_keeps_items(items: list[int], size: int) -> None:
    made = reader.xmap_readers(lambda item: item + 1, of(items), 3, size)
    assert sorted(made()) == sorted(item + 1 for item in items)


def test_shuffle_has_another_order_in_each_pass_and_follows_pythons_seed() -> None:
    random.seed(7)
    first = reader.shuffle(of(list(range(50))), 50)
    random.seed(7)
    second = reader.shuffle(of(list(range(50))), 50)
    passes = [list(first()) for _ in range(3)]
    assert passes == [list(second()) for _ in range(3)]
    assert passes[0] != passes[1] != passes[2]


def test_compose_joins_tuples_and_wants_equal_lengths() -> None:
    made = reader.compose(of([1, 2]), of([(3, 4), (5, 6)]), of([[7], [8]]))
    assert list(made()) == [(1, 3, 4, [7]), (2, 5, 6, [8])]
    uneven = reader.compose(of([1, 2, 3]), of([4, 5]))
    items = uneven()
    assert [next(items), next(items)] == [(1, 4), (2, 5)]
    with pytest.raises(reader.ComposeNotAligned, match=r"reader\(s\) \[1\] of 2 ended before"):
        next(items)
    assert issubclass(reader.ComposeNotAligned, ValueError)
    assert list(reader.compose(of([1, 2]), of([3]), check_alignment=False)()) == [(1, 3)]


def test_cache_reads_once() -> None:
    passes = []

    def numbers() -> Iterator[int]:
        passes.append(1)
        yield from range(4)

    made = reader.cache(numbers)
    assert list(made()) == list(made()) == [0, 1, 2, 3]
    assert len(passes) == 1


def test_a_batch_size_from_a_division_is_cut_to_an_int() -> None:
    assert list(reader.batch(of([1, 2, 3]), 5 / 2)()) == [[1, 2], [3]]


@pytest.mark.parametrize("size", [0, -1, 0.5, float("nan"), None, True])
def test_batch_sizes_below_one_are_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="batch_size must be an int >= 1"):
        reader.batch(of([1]), size)


@pytest.mark.parametrize(
    "make",
    [
        lambda: reader.shuffle(of([]), 0),
        lambda: reader.shuffle(of([]), 5, seed=-1),
        lambda: reader.buffered(of([]), 0),
        lambda: reader.firstn(of([]), -1),
        lambda: reader.xmap_readers(str, of([]), 0, 5),
        lambda: reader.xmap_readers(str, of([]), 1, 0),
        lambda: reader.multiprocess_reader([]),
        lambda: reader.multiprocess_reader([of([])], use_pipe=False, queue_size=0),
        lambda: reader.chain(),
        lambda: reader.compose(),
        lambda: reader.map_readers(str),
    ],
)
def test_invalid_settings_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError):
        make()


def test_values_that_are_not_readers_are_refused() -> None:
    with pytest.raises(TypeError, match="a reader must be a function without arguments.*got list"):
        reader.buffered([1, 2], 5)  # type: ignore[arg-type]


def failing_after(items: list[int]) -> Callable[[], Iterator[int]]:
    def numbers() -> Iterator[int]:
        yield from items
        raise OSError("disk gone")

    return numbers


@pytest.mark.parametrize(
    "decorate",
    [
        lambda source: reader.buffered(source, 2),
        lambda source: reader.xmap_readers(lambda item: item, source, 2, 4, order=True),
        lambda source: reader.xmap_readers(lambda item: item, source, 1, 4),
        lambda source: reader.shuffle(source, 1),
        lambda source: reader.chain(source, source),
    ],
)
def test_errors_of_a_reader_come_after_its_items_with_their_traceback(
    decorate: Callable[[Any], Callable[[], Iterator[int]]],
) -> None:
    items = decorate(failing_after([1, 2, 3]))()
    assert [next(items) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(OSError, match="disk gone") as caught:
        next(items)
    assert "numbers" in [entry.name for entry in caught.traceback]


@pytest.mark.parametrize("order", [True, False])
def test_errors_of_a_mapper_are_raised(order: bool) -> None:
    def invert(item: int) -> float:
        return 1 / item

    made = reader.xmap_readers(invert, of([1, 2, 0, 4]), 2, 4, order)
    with pytest.raises(ZeroDivisionError) as caught:
        list(made())
    assert "invert" in [entry.name for entry in caught.traceback]


def names_of_threads() -> list[str]:
    ours = ("sparsefleet-ahead", "sparsefleet-xmap")
    return [thread.name for thread in threading.enumerate() if thread.name in ours]


@pytest.mark.parametrize(
    "decorate",
    [
        lambda source: reader.buffered(source, 2),
        lambda source: reader.xmap_readers(lambda item: item, source, 3, 2),
        lambda source: reader.xmap_readers(lambda item: item, source, 3, 2, order=True),
    ],
)
@pytest.mark.parametrize("taken", [0, 1, 5])
def test_threads_end_when_a_loop_is_left_early(
    decorate: Callable[[Any], Callable[[], Iterator[int]]], taken: int
) -> None:
    closed = threading.Event()

    def endless() -> Iterator[int]:
        try:
            number = 0
            while True:
                yield number
                number += 1
        finally:
            closed.set()

    items = decorate(endless)()
    for _ in range(taken):
        next(items)
    del items
    assert names_of_threads() == []
    assert closed.is_set() or not taken


@pytest.mark.parametrize(
    "decorate",
    [
        lambda source: reader.buffered(source, 2, wait_s=0.05),
        lambda source: reader.xmap_readers(lambda item: item, source, 1, 2, wait_s=0.05),
    ],
)
def test_a_reader_that_is_stuck_is_an_error_after_the_deadline(
    decorate: Callable[[Any], Callable[[], Iterator[int]]],
) -> None:
    release = threading.Event()

    def stuck() -> Iterator[int]:
        yield 1
        release.wait(60)

    items = decorate(stuck)()
    assert next(items) == 1
    helper = threading.Timer(0.5, release.set)  # so that its thread can be joined
    helper.start()
    with pytest.raises(DataError, match=r"no batch arrived within 0.05 s \(wait_s\): the reader"):
        next(items)
    helper.join()


def test_xmap_reads_no_further_ahead_than_configured() -> None:
    read = []

    def numbers() -> Iterator[int]:
        for number in range(1000):
            read.append(number)
            yield number

    items = reader.xmap_readers(lambda item: item, numbers, 2, 3, order=True)()
    for taken in range(1, 50):
        next(items)
        assert len(read) <= taken + 3 + 2 + 1
