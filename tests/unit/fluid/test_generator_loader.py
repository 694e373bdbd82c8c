from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from sparsefleet import fluid
from sparsefleet.errors import ConfigError, DataError
from sparsefleet.fluid import LoDTensor
from sparsefleet.fluid.feeding.generator_loader import GeneratorLoader
from sparsefleet.fluid.paddle import reader

CPU = fluid.CPUPlace()
X = fluid.data("x", [None, 1], "int64")
IMAGE = fluid.data("image", [None, 4], "uint8")
ADS = fluid.data("ads", [None, 1], "int64", lod_level=1)


def samples(count: int) -> Callable[[], Iterator[tuple[int]]]:
    return lambda: ((number,) for number in range(count))


def arrays(count: int) -> Callable[[], Iterator[list[Any]]]:
    """A batch generator: batch n is [[n]]."""
    return lambda: ([np.array([[number]])] for number in range(count))


def loader_of(feed_list: list[Any], capacity: int = 4, **settings: Any) -> GeneratorLoader:
    return fluid.io.DataLoader.from_generator(feed_list, capacity, **settings)


def numbers(batches: Any) -> list[int]:
    return [batch["x"].numpy()[0, 0].item() for batch in batches]


def names_of_threads() -> list[str]:
    ours = ("sparsefleet-ahead", "sparsefleet-xmap")
    return [thread.name for thread in threading.enumerate() if thread.name in ours]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert names_of_threads() == []


# What is given


def test_samples_are_grouped_into_batches() -> None:
    loader = loader_of([X]).set_sample_generator(samples(7), 3, places=CPU)
    assert [batch["x"].numpy()[:, 0].tolist() for batch in loader()] == [[0, 1, 2], [3, 4, 5]]
    loader.set_sample_generator(samples(7), 3, drop_last=False, places=[CPU])
    assert [len(batch["x"]) for batch in loader] == [3, 3, 1]
    assert [len(batch["x"]) for batch in loader] == [3, 3, 1], "once more"


def test_samples_with_lists_become_sequences() -> None:
    loader = loader_of([ADS, X]).set_sample_generator(
        lambda: iter([([1, 2], 0), ([3], 1)]), 2, places=CPU
    )
    (batch,) = loader
    assert batch["ads"].lod() == [[0, 2, 3]]
    assert batch["ads"].shape() == [3, 1]


def test_lists_of_samples_are_batches_of_any_size() -> None:
    groups = [[(1,), (2,)], [(3,)]]
    loader = loader_of([X]).set_sample_list_generator(lambda: iter(groups), CPU)
    assert [batch["x"].numpy()[:, 0].tolist() for batch in loader] == [[1, 2], [3]]


def test_batches_are_handed_on_with_their_types_and_lod() -> None:
    ads = fluid.create_lod_tensor([[1, 2], [3]], [[2, 1]])
    image = np.full((2, 4), 7, np.uint8)
    loader = loader_of([IMAGE, ADS]).set_batch_generator(lambda: iter([(image, ads)]), CPU)
    (batch,) = loader
    assert batch["image"].tensor.dtype == torch.uint8
    assert batch["ads"] is ads


def test_a_generator_may_write_over_its_array() -> None:
    buffer = np.zeros((1, 1), np.int64)

    def reusing() -> Iterator[list[Any]]:
        for number in range(20):
            buffer[:] = number
            yield [buffer if number % 2 else torch.from_numpy(buffer)]

    assert numbers(loader_of([X]).set_batch_generator(reusing, CPU)) == list(range(20))


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("capacity", [1, 2, 64])
def test_batches_come_in_the_order_of_the_generator(capacity: int, double: bool) -> None:
    loader = loader_of([X], capacity, use_double_buffer=double)
    assert numbers(loader.set_batch_generator(arrays(50), CPU)) == list(range(50))


def test_lists_are_given_in_the_order_of_the_variables() -> None:
    loader = loader_of([X, IMAGE], return_list=True)
    loader.set_sample_generator(lambda: iter([(5, [1, 2, 3, 4])]), 1, places=CPU)
    ((x, image),) = loader()
    assert x.numpy().tolist() == [[5]]
    assert image.numpy().tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize(("drop_last", "sizes"), [(True, [2, 2]), (False, [2, 2, 1])])
def test_several_places_get_a_batch_each(drop_last: bool, sizes: list[int]) -> None:
    loader = loader_of([X], drop_last=drop_last).set_batch_generator(arrays(5), [CPU, CPU])
    groups = list(loader)
    assert [len(group) for group in groups] == sizes
    assert numbers(batch for group in groups for batch in group) == list(range(sum(sizes)))
    lists = loader_of([X], return_list=True).set_batch_generator(arrays(2), [CPU, CPU])
    (group,) = lists
    assert [columns[0].numpy().tolist() for columns in group] == [[[0]], [[1]]]


# What is refused


def test_loaders_need_variables_and_a_capacity() -> None:
    for feed_list in (None, []):
        with pytest.raises(ConfigError, match="needs feed_list"):
            fluid.io.DataLoader.from_generator(feed_list, 4)
    for capacity in (None, 0, -1, 2.5):
        with pytest.raises(
            ValueError, match="capacity, the number of batches to buffer, must be an int >= 1"
        ):
            fluid.io.PyReader([X], capacity)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must contain variables"):
        loader_of(["x"])


def test_iterable_loaders_need_places_and_others_ignore_them() -> None:
    with pytest.raises(AssertionError, match="places must be given"):
        loader_of([X]).set_batch_generator(arrays(1))
    loader_of([X], iterable=False).set_batch_generator(arrays(1))
    with pytest.raises(TypeError, match="a place must be"):
        loader_of([X]).set_batch_generator(arrays(1), ["cpu"])  # type: ignore[list-item]


@pytest.mark.parametrize("size", [0, -3])
def test_batch_sizes_below_one_are_refused(size: int) -> None:
    with pytest.raises(AssertionError, match="batch_size must be >= 1"):
        loader_of([X]).set_sample_generator(samples(1), size, places=CPU)


def test_each_kind_of_loader_refuses_the_calls_of_the_other() -> None:
    iterable = loader_of([X]).set_batch_generator(arrays(1), CPU)
    for call in (iterable.start, iterable.reset, iterable.take_feed):
        with pytest.raises(AssertionError, match="iterable=True cannot be"):
            call()
    started = loader_of([X], iterable=False).set_batch_generator(arrays(1))
    for use in (started, lambda: iter(started)):
        with pytest.raises(AssertionError, match="iterable=False cannot be iterated"):
            use()
    for loader in (loader_of([X]), loader_of([X], iterable=False)):
        with pytest.raises(AssertionError, match="no data; set a generator"):
            iter(loader) if loader.iterable else loader.start()


def test_multiprocess_of_imperative_mode_is_said_to_do_nothing() -> None:
    with pytest.warns(UserWarning, match="multiprocess_reader to read in separate processes"):
        loader_of([X], use_multiprocess=True)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ([[[1], [2, 3]]], TypeError, "'x': sequences of different lengths.*LoD"),
        (
            [np.array([[1], [2, 3]], dtype=object)],
            TypeError,
            "'x': sequences of different lengths.*LoD",
        ),
        ([np.zeros((2, 1), np.float32)], ValueError, "'x': got dtype float32, expected int64"),
        ([np.zeros((2, 3), np.int64)], ValueError, r"'x': got shape \(2, 3\), expected \(-1, 1\)"),
        ([1, 2], ConfigError, r"a list of 1 arrays \(x\), got a list, 2 of them"),
        (np.zeros((1, 1)), ConfigError, "got a ndarray, no list"),
    ],
)
def test_batches_that_do_not_fit_the_variables_are_errors(
    batch: Any, error: type[Exception], message: str
) -> None:
    loader = loader_of([X]).set_batch_generator(lambda: iter([batch]), CPU)
    with pytest.raises(error, match=message):
        list(loader)


# Errors and ends


def failing() -> Iterator[list[Any]]:
    yield [np.array([[1]])]
    raise KeyError("no such slot")


def test_an_error_of_the_generator_comes_after_its_batches_with_its_traceback() -> None:
    batches = iter(loader_of([X]).set_batch_generator(failing, CPU))
    assert numbers([next(batches)]) == [1]
    with pytest.raises(KeyError, match="no such slot") as caught:
        next(batches)
    assert "failing" in "".join(traceback.format_exception(caught.value))


def test_an_error_ends_a_started_loader_until_it_is_reset() -> None:
    loader = loader_of([X], iterable=False).set_batch_generator(failing)
    for _ in range(2):
        loader.start()
        loader.take_feed()
        for _ in range(2):
            with pytest.raises(KeyError, match="no such slot"):
                loader.take_feed()
        loader.reset()


def test_a_generator_that_is_stuck_is_an_error_after_the_deadline() -> None:
    release = threading.Event()

    def stuck() -> Iterator[list[Any]]:
        release.wait(60)
        yield [np.array([[1]])]

    loader = loader_of([X], wait_s=0.05).set_batch_generator(stuck, CPU)
    timer = threading.Timer(0.3, release.set)  # so that its thread can be joined
    timer.start()
    with pytest.raises(DataError, match=r"within 0.05 s \(wait_s\): the generator of the loader"):
        next(iter(loader))
    timer.join()


def test_leaving_a_loop_early_ends_its_thread_and_the_generator() -> None:
    closed = threading.Event()

    def endless() -> Iterator[list[Any]]:
        try:
            while True:
                yield [np.array([[1]])]
        finally:
            closed.set()

    loader = loader_of([X], 2).set_batch_generator(endless, CPU)
    for _ in loader:
        break
    assert closed.is_set()
    assert names_of_threads() == []


def test_a_new_loop_ends_the_one_before() -> None:
    loader = loader_of([X], 2).set_batch_generator(arrays(100), CPU)
    first = iter(loader)
    assert numbers(islice(first, 2)) == [0, 1]
    second = iter(loader)
    assert list(first) == []
    assert numbers(islice(second, 2)) == [0, 1]


def test_a_loader_that_is_dropped_while_started_leaves_no_thread() -> None:
    loader = loader_of([X], 2, iterable=False).set_batch_generator(arrays(100))
    loader.start()
    loader.take_feed()
    del loader
    assert names_of_threads() == []


# Started and reset


def test_started_loaders_give_feeds_until_the_end_and_again_after_a_reset() -> None:
    loader = loader_of([X], iterable=False).set_sample_generator(samples(5), 2, drop_last=False)
    with pytest.raises(RuntimeError, match="has not been started"):
        loader.take_feed()
    for _ in range(2):
        loader.start()
        with pytest.raises(RuntimeError, match="is already started"):
            loader.start()
        feeds = [loader.take_feed()["x"].numpy()[:, 0].tolist() for _ in range(3)]
        assert feeds == [[0, 1], [2, 3], [4]]
        for _ in range(2):
            with pytest.raises(fluid.core.EOFException, match="no more batches; call reset"):
                loader.take_feed()
        loader.reset()


def test_a_reset_in_the_middle_rewinds() -> None:
    loader = loader_of([X], iterable=False).set_batch_generator(arrays(100))
    for _ in range(3):
        loader.start()
        assert [loader.take_feed()["x"].numpy().item() for _ in range(4)] == [0, 1, 2, 3]
        loader.reset()
        assert names_of_threads() == []


def test_several_threads_share_the_feeds() -> None:
    loader = loader_of([X], iterable=False).set_batch_generator(arrays(200))
    loader.start()
    found: list[list[int]] = [[], [], []]

    def take(into: list[int]) -> None:
        try:
            while True:
                into.append(loader.take_feed()["x"].numpy().item())
        except fluid.core.EOFException:
            pass

    threads = [threading.Thread(target=take, args=(into,)) for into in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found[0] + found[1] + found[2]) == list(range(200))


class CountedBatches:
    """Yields endless batches; counts the requests."""

    def __init__(self) -> None:
        self.begun = 0
        self.made = threading.Semaphore(0)

    def __call__(self) -> Iterator[list[Any]]:
        self.begun += 1
        number = 0
        while True:
            self.made.release()
            yield [np.array([[number]])]
            number += 1

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self.made.acquire(timeout=60)


@pytest.mark.parametrize(("double", "ready"), [(True, 4), (False, 3)])
def test_batches_are_made_ready_in_the_background(double: bool, ready: int) -> None:
    batches = CountedBatches()
    loader = loader_of([X], 3, iterable=False, use_double_buffer=double)
    loader.set_batch_generator(batches)
    loader.start()
    batches.wait_for(ready + 1)  # the last of them has no room yet
    assert not batches.made.acquire(blocking=False)
    loader.take_feed()
    batches.wait_for(1)
    loader.reset()


def test_an_endless_generator_is_not_refilled_between_epochs() -> None:
    batches = CountedBatches()
    loader = loader_of([X], 3, iterable=False).set_batch_generator(batches)
    found = []
    for epoch in range(4):
        if epoch == 0:
            loader.start()
            batches.wait_for(5)
        for _ in range(6):
            found.append(loader.take_feed()["x"].numpy().item())
            batches.wait_for(1)  # the queue is full again, also across epochs
    loader.reset()
    assert found == list(range(24))
    assert batches.begun == 1


def test_one_iterator_over_an_endless_generator_serves_all_epochs() -> None:
    batches = CountedBatches()
    endless = iter(loader_of([X], 3).set_batch_generator(batches, CPU))
    assert [numbers(islice(endless, 3)) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert batches.begun == 1


class FarPlace(fluid.core.Place):
    """A device that does not exist; records where and by whom tensors were copied."""


def test_double_buffering_copies_to_the_device_in_the_background(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied_by: list[str] = []

    def copy(tensor: torch.Tensor, place: fluid.core.Place) -> torch.Tensor:
        copied_by.append(threading.current_thread().name)
        return tensor.clone() if isinstance(place, FarPlace) else tensor

    monkeypatch.setattr("sparsefleet.fluid.lod_tensor.place_tensor", copy)
    for double in (True, False):
        loader = loader_of([X], 2, use_double_buffer=double)
        loader.set_sample_generator(samples(5), 1, places=FarPlace())
        copied_by.clear()
        assert numbers(loader) == [0, 1, 2, 3, 4]
        assert (threading.current_thread().name in copied_by) != double


# Continuing after a stop


def resumed(make: Callable[[], GeneratorLoader], state: dict[str, Any]) -> GeneratorLoader:
    loader = make()
    loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


@pytest.mark.parametrize("stop", range(8))
def test_resumes_at_the_record_and_not_at_what_was_read_ahead(stop: int) -> None:
    def make() -> GeneratorLoader:
        shuffled = reader.shuffle(samples(21), 8, seed=3)
        loader = loader_of([X], 5)
        return loader.set_sample_generator(shuffled, 3, drop_last=False, places=CPU)

    def taken(batches: Any) -> list[list[int]]:
        return [batch["x"].numpy()[:, 0].tolist() for batch in batches]

    whole = make()
    passes = [taken(whole) for _ in range(3)]
    assert passes[0] != passes[1]
    first = make()
    assert taken(first) == passes[0]
    batches = iter(first)
    assert taken(islice(batches, stop)) == passes[1][:stop]
    second = resumed(make, first.state_dict())
    assert second.state_dict() == first.state_dict()
    assert taken(second) == passes[1][stop:]
    assert taken(second) == passes[2]
    assert taken(resumed(make, second.state_dict())) == taken(whole)


def test_started_loaders_continue_as_well() -> None:
    def make() -> GeneratorLoader:
        return loader_of([X], iterable=False).set_batch_generator(arrays(9))

    first = make()
    assert first.state_dict()["position"] is None
    first.start()
    assert [first.take_feed()["x"].numpy().item() for _ in range(4)] == [0, 1, 2, 3]
    second = resumed(make, first.state_dict())
    second.start()
    assert second.take_feed()["x"].numpy().item() == 4
    second.reset()
    third = resumed(make, second.state_dict())
    third.start()
    assert third.take_feed()["x"].numpy().item() == 0


def test_a_resumed_pass_says_where_before_its_first_batch() -> None:
    def make() -> GeneratorLoader:
        return loader_of([X]).set_batch_generator(arrays(5), CPU)

    first = make()
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    second = resumed(make, state)
    again = iter(second)
    assert second.state_dict() == state
    assert numbers(again) == [1, 2, 3, 4]
    assert second.state_dict()["pass"] == 1
    through = resumed(make, second.finished_state_dict())
    assert numbers(through) == []
    assert numbers(through) == [0, 1, 2, 3, 4]


def test_groups_of_places_resume_at_the_group() -> None:
    def make() -> GeneratorLoader:
        return loader_of([X]).set_batch_generator(arrays(7), [CPU, CPU])

    first = make()
    batches = iter(first)
    assert numbers(next(batches)) == [0, 1]
    second = resumed(make, first.state_dict())
    assert [numbers(group) for group in second] == [[2, 3], [4, 5]]


def test_states_of_other_loaders_are_refused() -> None:
    state = loader_of([X]).set_batch_generator(arrays(7), CPU).state_dict()
    grouped = loader_of([X]).set_sample_generator(samples(7), 2, places=CPU)
    with pytest.raises(ConfigError, match="the state belongs to function"):
        grouped.load_state_dict(state)
    with pytest.raises(AssertionError, match="no data"):
        loader_of([X]).state_dict()


def test_lod_tensors_of_a_batch_are_what_a_list_has() -> None:
    (batch,) = loader_of([X], return_list=True).set_batch_generator(arrays(1), CPU)
    assert all(isinstance(column, LoDTensor) for column in batch)


def test_py_reader_has_the_older_names() -> None:
    py_reader = fluid.io.PyReader(feed_list=[X], capacity=4, iterable=False)
    for decorate, source in (
        (py_reader.decorate_batch_generator, arrays(2)),
        (py_reader.decorate_tensor_provider, arrays(2)),
        (py_reader.decorate_sample_list_generator, lambda: iter([[(0,)], [(1,)]])),
        (py_reader.decorate_paddle_reader, fluid.io.batch(samples(2), 1)),
    ):
        decorate(source)  # type: ignore[operator]
        py_reader.start()
        assert [py_reader.take_feed()["x"].numpy().item() for _ in range(2)] == [0, 1]
        with pytest.raises(fluid.core.EOFException):
            py_reader.take_feed()
        py_reader.reset()
    iterable = fluid.io.PyReader([X], 4, return_list=True)
    iterable.decorate_sample_generator(samples(3), batch_size=1, places=fluid.cpu_places(1))
    assert [x.numpy().item() for (x,) in iterable()] == [0, 1, 2]
