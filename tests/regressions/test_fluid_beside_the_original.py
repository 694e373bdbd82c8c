"""Differences that a comparison of random programs with PaddlePaddle 1.8.5 has shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid

pytestmark = pytest.mark.usefixtures("fresh_programs")
L = fluid.layers


def _run(feed: dict[str, Any], *fetches: Any) -> list[Any]:
    exe = fluid.Executor()
    if fluid.default_startup_program().global_block().ops:
        exe.run(fluid.default_startup_program())
    return exe.run(feed=feed, fetch_list=list(fetches))


def _normalized() -> fluid.Variable:
    return L.batch_norm(L.fc(fluid.data("x", [None, 3]), 2), momentum=0.5)


def test_saved_parameters_include_the_running_statistics_of_batch_norm(tmp_path: Path) -> None:
    out = _normalized()
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": np.arange(12, dtype="float32").reshape(4, 3)}, fetch_list=[out])
    fluid.io.save_params(exe, str(tmp_path))
    saved = {path.name for path in tmp_path.iterdir()}
    assert {"batch_norm_0.w_1", "batch_norm_0.w_2"} <= saved
    parameters = {p.name: p.trainable for p in fluid.default_main_program().all_parameters()}
    assert not parameters["batch_norm_0.w_1"]
    held = fluid.global_scope().find_var("batch_norm_0.w_1")
    assert held is not None
    mean = np.array(held.get_tensor())
    exe.run(fluid.default_startup_program())
    fluid.io.load_params(exe, str(tmp_path))
    np.testing.assert_array_equal(np.array(held.get_tensor()), mean)
    assert mean.any()


def test_batch_norm_passes_on_a_batch_with_one_value_per_channel() -> None:
    x = fluid.data("x", [None, 3])
    out = L.batch_norm(x)
    one = np.array([[1.0, 2.0, 3.0]], "float32")
    np.testing.assert_array_equal(_run({"x": one}, out)[0], one)


def test_group_norm_takes_groups_of_one_value() -> None:
    out = L.group_norm(fluid.data("x", [None, 2, 1, 1]), groups=2)
    found = _run({"x": np.ones((1, 2, 1, 1), "float32")}, out)[0]
    np.testing.assert_allclose(found, 0.0, atol=1e-6)


@pytest.mark.parametrize(
    ("overwrite", "expected"), [(True, [[3.0], [0.0], [2.0]]), (False, [[4.0], [0.0], [2.0]])]
)
def test_the_last_gradient_of_a_gathered_row_counts_unless_they_are_summed(
    overwrite: bool, expected: list[list[float]]
) -> None:
    x = fluid.data("x", [3, 1])
    x.stop_gradient = False
    index = fluid.data("index", [None], "int64")
    weight = fluid.data("weight", [None, 1])
    total = L.reduce_sum(L.gather(x, index, overwrite) * weight)
    (gradient,) = fluid.gradients([total], [x])
    feed = {
        "x": np.ones((3, 1), "float32"),
        "index": np.array([0, 2, 0]),
        "weight": np.array([[1], [2], [3]], "float32"),
    }
    np.testing.assert_allclose(_run(feed, gradient)[0], expected)


def test_a_slice_with_a_negative_stride_and_the_end_minus_one_reaches_the_first_element() -> None:
    known, open_ = fluid.data("known", [4]), fluid.data("open", [None])
    slices = [L.strided_slice(x, [0], [2], [-1], [-1]) for x in (known, open_)]
    assert [x.shape for x in slices] == [(3,), (-1,)]
    numbers = np.arange(4, dtype="float32")
    for found in _run({"known": numbers, "open": numbers}, *slices):
        assert list(found) == [2, 1, 0]


def test_one_hot_takes_columns_of_a_size_that_is_known_only_when_it_runs() -> None:
    ids = fluid.data("ids", [2, None], "int64")
    out = L.one_hot(ids, 3)
    assert _run({"ids": np.array([[0], [2]])}, out)[0].shape == (2, 3)
    with pytest.raises(ValueError, match=r"ids must have shape \[\.\.\., 1\], got \[2, 2\]"):
        _run({"ids": np.array([[0, 1], [2, 1]])}, out)


def test_the_gradient_for_soft_labels_is_softmax_minus_label() -> None:
    x, label = fluid.data("x", [None, 2]), fluid.data("label", [None, 2])
    x.stop_gradient = False
    loss = L.softmax_with_cross_entropy(x, label, soft_label=True)
    (gradient,) = fluid.gradients([loss], [x])
    feed = {"x": np.zeros((1, 2), "float32"), "label": np.array([[1.0, 2.0]], "float32")}
    found = _run(feed, loss, gradient)
    np.testing.assert_allclose(found[0], [[3 * np.log(2)]], rtol=1e-6)
    np.testing.assert_allclose(found[1], [[-0.5, -1.5]], rtol=1e-6)


def test_the_cross_entropy_of_a_negative_probability_is_not_a_number() -> None:
    x, label = fluid.data("x", [None, 2]), fluid.data("label", [None, 1], "int64")
    feed = {"x": np.array([[-1.0, 0.5], [0.0, 1.0]], "float32"), "label": np.zeros((2, 1), "int64")}
    found = _run(feed, L.cross_entropy(x, label))[0].ravel()
    assert np.isnan(found[0])
    assert found[1] == pytest.approx(1e20)


def test_products_of_as_many_matrices_take_the_leading_sizes_of_the_first() -> None:
    x, y = fluid.data("x", [None, 1, 2, 3]), fluid.data("y", [None, 3, 4])
    out = L.matmul(x, y)
    assert out.shape == (-1, 1, 2, 4)
    values = np.random.RandomState(0).rand(3, 1, 2, 3).astype("float32")
    others = np.random.RandomState(1).rand(3, 3, 4).astype("float32")
    found = _run({"x": values, "y": others}, out)[0]
    np.testing.assert_allclose(found[:, 0], values[:, 0] @ others, rtol=1e-5)


def test_swish_says_that_beta_has_no_effect() -> None:
    x = fluid.data("x", [1])
    with pytest.warns(UserWarning, match="beta=2.0 has no effect"):
        out = L.swish(x, beta=2.0)
    found = _run({"x": np.ones(1, "float32")}, out)[0]
    assert found[0] == pytest.approx(1 / (1 + np.exp(-1)))


def test_stacking_an_array_also_returns_the_sizes_of_its_elements() -> None:
    x = fluid.data("x", [None, 3])
    array = L.create_array("float32")
    for place in range(2):
        L.array_write(x, L.fill_constant([1], "int64", place), array)
    _, sizes = L.tensor_array_to_tensor(array, axis=0, use_stack=True)
    assert list(_run({"x": np.ones((5, 3), "float32")}, sizes)[0]) == [5, 5]


def test_a_variable_cannot_be_declared_again_with_another_dtype() -> None:
    block = fluid.default_main_program().global_block()
    block.create_var(name="x", shape=[2], dtype="float64")
    assert block.create_var(name="x").dtype == "float64"
    with pytest.raises(ValueError, match="exists with dtype float64, but is now declared with"):
        block.create_var(name="x", dtype="int64")


def test_group_norm_takes_views_and_batches_without_rows() -> None:
    x = fluid.data("x", [None, 3, 4])
    out = L.group_norm(L.transpose(x, [0, 2, 1]), groups=2)
    found = _run({"x": np.arange(24, dtype="float32").reshape(2, 3, 4)}, out)[0]
    np.testing.assert_allclose(found.reshape(4, -1).mean(axis=1), 0.0, atol=1e-6)
    assert _run({"x": np.zeros((0, 3, 4), "float32")}, out)[0].shape == (0, 4, 3)


def test_a_prefix_may_end_like_a_file_that_save_writes(tmp_path: Path) -> None:
    L.fc(fluid.data("x", [None, 3]), 2)
    fluid.Executor().run(fluid.default_startup_program())
    prefix = str(tmp_path / "epoch_0.pdmodel")
    fluid.save(fluid.default_main_program(), prefix)
    fluid.load(fluid.default_main_program(), prefix)
    assert fluid.io.load_program_state(prefix)


def test_parameters_that_a_program_clips_are_still_learned() -> None:
    L.fc(fluid.data("x", [None, 3]), 2, bias_attr=False)
    block = fluid.default_main_program().global_block()
    weight = block.all_parameters()[0]
    L.assign(L.clip(weight, -1.0, 1.0), weight)
    assert block.learned_parameters() == [weight]


def test_stop_gradient_of_a_result_can_be_taken_back() -> None:
    with fluid.dygraph.guard():
        made = fluid.dygraph.Linear(2, 1)
        result = made(fluid.dygraph.to_variable(np.ones((1, 2), "float32")))
        result.stop_gradient = True
        result.stop_gradient = False
        L.reduce_sum(result).backward()
        np.testing.assert_array_equal(made.weight.gradient(), np.ones((2, 1)))


def test_unique_name_switch_takes_what_it_returned() -> None:
    before = fluid.unique_name.generate("name")
    old = fluid.unique_name.switch()
    fluid.unique_name.switch(old)
    assert fluid.unique_name.generate("name") != before
