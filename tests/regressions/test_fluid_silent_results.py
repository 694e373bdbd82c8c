"""Results of Fluid programs that were silently wrong, or runs that never ended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid

pytestmark = pytest.mark.usefixtures("fresh_programs")
L = fluid.layers


def fed(**arrays: Any) -> dict[str, Any]:
    return {name: np.asarray(array, "float32") for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("x", "y", "wanted"),
    [
        ([-1, -1, -1], [-1, -1, 16], (-1, -1, 16)),
        ([-1, 3], [-1, -1], (-1, -1)),
        ([-1, 3, 5], [2, 5, 4], (2, 3, 4)),
    ],
)
def test_open_sizes_of_a_product_are_distinguished(x: Any, y: Any, wanted: Any) -> None:
    assert L.matmul(fluid.data("x", x), fluid.data("y", y)).shape == wanted


def test_a_reshape_may_divide_an_open_size_by_any_number() -> None:
    x = fluid.data("x", [None, 64])
    assert L.reshape(x, [50, -1, 32]).shape == (50, -1, 32)
    assert L.reshape(x, [0, -1, 16]).shape == (-1, 4, 16)


def test_a_product_of_transposed_vectors_is_a_matrix() -> None:
    x, y = fluid.data("x", [3]), fluid.data("y", [3])
    product = L.matmul(x, y, True, True)
    (found,) = fluid.Executor().run(feed=fed(x=[1, 2, 3], y=[4, 5, 6]), fetch_list=[product])
    assert product.shape == (3, 3)
    assert np.array_equal(found, np.outer([1, 2, 3], [4, 5, 6]).astype("float32"))


def test_gather_nd_with_an_empty_index_repeats_the_whole() -> None:
    x, index = fluid.data("x", [2, 3]), fluid.data("index", [2, 0], "int64")
    out = L.gather_nd(x, index)
    feed = {**fed(x=np.ones((2, 3))), "index": np.zeros((2, 0), "int64")}
    (found,) = fluid.Executor().run(feed=feed, fetch_list=[out])
    assert out.shape == found.shape == (2, 2, 3)


@pytest.mark.parametrize(("join", "wanted"), [(L.concat, (-1, 2)), (L.stack, (-1, 3, 2))])
def test_joined_elements_of_an_array_have_an_open_size(join: Any, wanted: Any) -> None:
    x = fluid.data("x", [3, 2])
    array = L.create_array("float32")
    for place in range(2):
        array = L.array_write(x, L.fill_constant([1], "int64", place), array)
    assert join(array, axis=0).shape == wanted


def test_the_last_state_of_rnn_has_no_axis_of_steps() -> None:
    steps, lengths = fluid.data("x", [None, None, 8]), fluid.data("n", [None], "int64")
    _, last = L.rnn(L.GRUCell(8), steps, sequence_length=lengths)
    assert last.shape == (-1, 8)


def test_create_var_of_a_known_name_keeps_its_type() -> None:
    block = fluid.default_main_program().global_block()
    fluid.data("x", [None, 2], "float64")
    again = block.create_var(name="x")
    assert (again.dtype, again.shape) == ("float64", (-1, 2))


def test_a_loader_whose_variable_nobody_reads_advances_and_ends() -> None:
    x = fluid.data("x", [None, 1])
    loader = fluid.io.DataLoader.from_generator([x], capacity=2, iterable=False)
    loader.set_batch_generator(lambda: iter([[np.ones((1, 1), "float32")]] * 3))
    total = L.fill_constant([1], "float32", 2.0)
    exe = fluid.Executor()
    loader.start()
    for _ in range(3):
        exe.run(fetch_list=[total])
    with pytest.raises(fluid.core.EOFException):
        exe.run(fetch_list=[total])


def test_a_loaders_own_variable_can_be_fetched() -> None:
    x = fluid.data("x", [None, 1])
    loader = fluid.io.DataLoader.from_generator([x], capacity=2, iterable=False)
    loader.set_batch_generator(lambda: iter([[np.full((1, 1), 7.0, "float32")]]))
    loader.start()
    assert fluid.Executor().run(fetch_list=[x]) == [7.0]
    loader.reset()


def test_check_nan_inf_names_the_operator_that_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGS_check_nan_inf", "1")
    out = L.log(fluid.data("x", [1]))
    with pytest.raises(fluid.core.EnforceNotMet, match="log: find nan or inf"):
        fluid.Executor().run(feed=fed(x=[-1]), fetch_list=[out])


def test_a_loss_of_gradients_has_gradients() -> None:
    x = fluid.data("x", [None, 1])
    x.stop_gradient = False
    (first,) = fluid.gradients(L.reduce_sum(x * x * x), x)
    (second,) = fluid.gradients(L.reduce_sum(first * first), x)
    found = fluid.Executor().run(feed=fed(x=[[2]]), fetch_list=[first, second])
    assert [float(one[0, 0]) for one in found] == [12.0, 288.0]  # 3 x^2, and 36 x^3


def test_gradients_of_several_targets_are_added_up() -> None:
    x, weight = fluid.data("x", [2]), fluid.data("w", [2])
    x.stop_gradient = False
    (found,) = fluid.gradients([x * 2.0, x * weight], x)
    feed = fed(x=[1, 1], w=[5, 6])
    assert fluid.Executor().run(feed=feed, fetch_list=[found])[0].tolist() == [7.0, 8.0]


def test_an_item_of_a_loader_has_the_feed_of_each_place() -> None:
    x = fluid.data("x", [None, 1])
    loader = fluid.io.DataLoader.from_generator([x], capacity=2)
    batches = [[np.full((1, 1), 3.0, "float32")]]
    loader.set_batch_generator(lambda: iter(batches), places=fluid.CPUPlace())
    for item in loader():
        assert [list(feed) for feed in item] == [["x"]]
        assert fluid.Executor().run(feed=item, fetch_list=[x * 2.0]) == [6.0]


def test_a_started_loader_tells_how_many_batches_are_ready() -> None:
    x = fluid.data("x", [None, 1])
    reader = fluid.io.PyReader([x], capacity=2, iterable=False)
    reader.decorate_batch_generator(lambda: iter([[np.ones((1, 1), "float32")]] * 3))
    reader.start()
    assert 0 <= reader.queue.size() <= 3
    reader.reset()
