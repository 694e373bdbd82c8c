from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet import fluid
from sparsefleet.fluid.framework.variable import Variable

CPU = fluid.CPUPlace()


def nest(depth: int) -> st.SearchStrategy[Any]:
    """Lists of ints, `depth` deep."""
    strategy: st.SearchStrategy[Any] = st.integers(-(2**40), 2**40)
    for _ in range(depth):
        strategy = st.lists(strategy, max_size=4)
    return strategy


def unnest(values: list[int], levels: list[list[int]]) -> list[Any]:
    """Return the values in nested lists of these lengths, outermost first."""
    parts: list[Any] = values
    for lengths in reversed(levels):
        rest = iter(parts)
        parts = [[next(rest) for _ in range(length)] for length in lengths]
    return parts


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 3).flatmap(
        lambda depth: st.tuples(st.just(depth), st.lists(nest(depth), min_size=1, max_size=5))
    )
)
def test_lod_and_values_tell_the_nest_they_were_made_of(case: tuple[int, list[Any]]) -> None:
    depth, fields = case
    ids = Variable("ids", [-1, 1], "int64", lod_level=depth)
    column = fluid.DataFeeder([ids], CPU).feed([(field,) for field in fields])["ids"]
    assert column.has_valid_recursive_sequence_lengths()
    assert len(column.lod()) == depth
    assert column.shape()[1:] == [1]
    values = column.numpy()[:, 0].tolist()
    assert unnest(values, column.recursive_sequence_lengths()) == fields


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=6))
def test_arrays_are_fed_as_lists_are(fields: list[list[int]]) -> None:
    ids = Variable("ids", [-1, 1], "int64", lod_level=1)
    feeder = fluid.DataFeeder([ids], CPU)
    lists = feeder.feed([(field,) for field in fields])["ids"]
    arrays = feeder.feed([(np.array(field, dtype=np.int32),) for field in fields])["ids"]
    assert (arrays.numpy() == lists.numpy()).all()
    assert arrays.lod() == lists.lod()
    assert arrays.tensor.dtype == torch.int64


def test_fields_without_lod_are_stacked_cast_and_reshaped() -> None:
    image = fluid.layers.data("image", [3, 2, 2], dtype="uint8")
    label = fluid.layers.data("label", [1], dtype="int64")
    weight = fluid.layers.data("weight", [2], dtype="float32")
    feeder = fluid.DataFeeder([image, label, weight], CPU)
    feed = feeder.feed([(np.arange(12, dtype=np.uint8), 1, [1, 2]), (list(range(12)), 0.0, (3, 4))])
    assert list(feed) == feeder.feed_names == ["image", "label", "weight"]
    assert feed["image"].shape() == [2, 3, 2, 2]
    assert feed["image"].tensor.dtype == torch.uint8
    assert feed["label"].numpy().tolist() == [[1], [0]]
    assert feed["weight"].numpy().tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert feed["weight"].tensor.dtype == torch.float32
    assert feed["label"].lod() == []


def test_shapes_with_several_unknown_sizes_stay_as_fed() -> None:
    map_ = fluid.layers.data("map", [-1, -1], dtype="float32")
    feed = fluid.DataFeeder([map_], CPU).feed([([[1, 2]],), ([[3, 4]],)])
    assert feed["map"].shape() == [2, 1, 2]


def test_rows_of_sequences_may_have_a_shape() -> None:
    words = fluid.data("words", [None, 2], "float32", lod_level=1)
    feed = fluid.DataFeeder([words], CPU).feed([([[1, 2], [3, 4]],), ([[5, 6]],)])
    assert feed["words"].shape() == [3, 2]
    assert feed["words"].lod() == [[0, 2, 3]]


@pytest.mark.parametrize("sample", [(1,), (1, 2, 3), ()])
def test_samples_with_another_number_of_fields_are_refused(sample: tuple[int, ...]) -> None:
    pair = [fluid.layers.data(name, [1]) for name in "ab"]
    with pytest.raises(AssertionError, match=f"{len(sample)} fields, expected 2: a, b"):
        fluid.DataFeeder(pair, CPU).feed([sample])


def test_ragged_fields_are_refused_with_advice() -> None:
    dense = fluid.layers.data("dense", [2])
    with pytest.raises(TypeError, match="'dense': sequences of different lengths.*LoD"):
        fluid.DataFeeder([dense], CPU).feed([([1, 2],), ([1],)])


@pytest.mark.parametrize("value", ["text", 2**64])
def test_values_that_do_not_fit_the_type_are_refused(value: Any) -> None:
    label = fluid.layers.data("label", [1], dtype="int64")
    with pytest.raises(ValueError, match="'label' cannot be converted to int64"):
        fluid.DataFeeder([label], CPU).feed([(value,)])


def test_shapes_that_do_not_fit_are_refused() -> None:
    dense = fluid.layers.data("dense", [3, 2])
    with pytest.raises(
        ValueError, match=r"'dense': got shape \(1, 5\), which cannot be converted to \(-1, 3, 2\)"
    ):
        fluid.DataFeeder([dense], CPU).feed([([1, 2, 3, 4, 5],)])
    checked = fluid.data("dense", [None, 3])
    with pytest.raises(ValueError, match=r"shape \(1, 2\), expected \(-1, 3\)"):
        fluid.DataFeeder([checked], CPU).feed([([1, 2],)])


def test_too_few_levels_of_lists_are_refused() -> None:
    ids = fluid.layers.data("ids", [1], dtype="int64", lod_level=2)
    with pytest.raises(TypeError, match="'ids' has lod_level 2.*at depth 1"):
        fluid.DataFeeder([ids], CPU).feed([([1, 2],)])


def test_feed_lists_have_variables_or_names_of_a_program() -> None:
    with pytest.raises(TypeError, match="must contain variables.*got 7"):
        fluid.DataFeeder([7], CPU)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="variable 'x'"):
        fluid.DataFeeder(["x"], CPU)
    fluid.data("x", [None, 1])
    assert fluid.DataFeeder(["x"], CPU).feed_names == ["x"]
    known = Variable("x", [-1, 1], "int64")

    class OneBlock:
        """A program with one variable."""

        def global_block(self) -> OneBlock:
            return self

        def var(self, name: str) -> Variable:
            return {"x": known}[name]

    assert fluid.DataFeeder(["x"], CPU, OneBlock()).feed([(5,)])["x"].numpy().tolist() == [[5]]


def batches() -> Iterator[list[tuple[int]]]:
    for number in range(5):
        yield [(number,), (number + 10,)]


def test_feeds_several_places() -> None:
    x = fluid.layers.data("x", [1], dtype="int64")
    feeder = fluid.DataFeeder([x], CPU)
    feeds = list(feeder.feed_parallel([[(1,)], [(2,)]], num_places=2))
    assert [feed["x"].numpy().tolist() for feed in feeds] == [[[1]], [[2]]]
    with pytest.raises(ValueError, match="3 batches for 2 places"):
        list(feeder.feed_parallel([[(1,)]] * 3, num_places=2))


def test_decorates_readers_of_batches() -> None:
    x = fluid.layers.data("x", [1], dtype="int64")
    feeder = fluid.DataFeeder([x], CPU)
    one = [feed["x"].numpy()[0, 0] for feed in feeder.decorate_reader(batches, False)()]
    assert one == [0, 1, 2, 3, 4]
    reader = feeder.decorate_reader(batches, True, num_places=2)
    assert [[feed["x"].numpy()[0, 0] for feed in feeds] for feeds in reader()] == [[0, 1], [2, 3]]
    whole = feeder.decorate_reader(batches, True, num_places=2, drop_last=False)()
    next(whole), next(whole)
    with pytest.raises(ValueError, match="the last group has 1 of 2 batches"):
        next(whole)
    assert len(list(feeder.decorate_reader(batches, True, 5, drop_last=False)())) == 1


def test_a_decorated_reader_resumes_after_a_stop() -> None:
    ads = fluid.data("ads", [None, 1], "int64")

    def batches() -> Iterator[list[tuple[int]]]:
        yield from ([(number,)] for number in range(10))

    for multi_devices in (False, True):
        feeder = fluid.DataFeeder([ads], fluid.CPUPlace())
        first, again = (feeder.decorate_reader(batches, multi_devices, 2) for _ in range(2))
        feeds = first()
        next(feeds)
        again.load_state_dict(first.state_dict())
        assert repr(list(again())) == repr(list(feeds))
