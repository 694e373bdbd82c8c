"""Differences from 1.8.5 that short probes of each feature showed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.fluid.paddle.as_paddle import PROVIDED_PATH

pytestmark = pytest.mark.usefixtures("fresh_programs")
L = fluid.layers


def floats(*sizes: int) -> Any:
    return np.arange(np.prod(sizes), dtype="float32").reshape(sizes)


def number(value: int) -> fluid.Variable:
    return L.fill_constant([1], "int32", value)


def test_a_reshape_with_an_actual_shape_is_declared_as_its_list_says() -> None:
    x = fluid.data("x", [None, 6])
    out = L.reshape(x, [-1, 4], actual_shape=L.assign(np.array([3, 4], "int32")))
    assert out.shape == (-1, 4)
    assert L.fc(out, 2).shape == (-1, 2)


def test_a_resize_with_an_actual_shape_is_declared_as_its_list_says() -> None:
    x = fluid.data("x", [None, 1, 2, 2])
    out = L.resize_nearest(x, [4, 6], actual_shape=L.assign(np.array([4, 6], "int32")))
    assert out.shape == (-1, 1, 4, 6)


def test_only_axes_with_a_variable_bound_have_an_open_size() -> None:
    x = fluid.data("x", [None, 5, 7])
    assert x[number(1) : number(3), 1:, 2].shape == (-1, 4)
    assert L.slice(x, [1, 2], [number(1), 0], [3, 4]).shape == (-1, -1, 4)
    assert L.strided_slice(x, [1, 2], [4, 0], [0, 7], [number(-1), 2]).shape == (-1, -1, 4)


def test_a_variable_created_again_keeps_what_is_not_given() -> None:
    block = fluid.default_main_program().global_block()
    block.create_var(name="kept", dtype="float64", shape=[3], persistable=True)
    again = block.create_var(name="kept")
    assert (again.dtype, again.shape, again.persistable) == ("float64", (3,), True)
    assert block.create_var(name="kept", persistable=None).persistable


@pytest.mark.parametrize("other", [{"persistable": True}, {"lod_level": 1}, {"shape": [4]}])
def test_a_variable_created_again_may_not_differ(other: dict[str, Any]) -> None:
    block = fluid.default_main_program().global_block()
    block.create_var(name="kept", dtype="float64", shape=[3], lod_level=0)
    with pytest.raises(ValueError, match="kept"):
        block.create_var(name="kept", **other)


def batches() -> Iterator[list[Any]]:
    return iter([[floats(2, 1)], [floats(2, 1)]])


@pytest.mark.parametrize("places", [1, 2])
def test_the_feed_of_a_place_iterates_over_its_names(places: int) -> None:
    loader = fluid.io.DataLoader.from_generator([fluid.data("x", [None, 1])], capacity=4)
    loader.set_batch_generator(batches, fluid.cpu_places(places))
    for item in loader():
        assert len(item) == places
        assert sorted(item[0]) == ["x"]
        assert [sorted(feed) for feed in item] == [["x"]] * places


def test_a_value_set_in_the_feed_of_a_place_is_fed() -> None:
    x = fluid.data("x", [None, 1])
    loader = fluid.io.DataLoader.from_generator([x], capacity=4)
    loader.set_batch_generator(batches, fluid.cpu_places(1))
    y = L.scale(x, 2.0)
    exe = fluid.Executor()
    first, second = loader()
    first[0]["x"] = np.array([[7], [8]], np.float32)
    for feed in second:
        feed["x"] = np.array([[5], [6]], np.float32)
    assert exe.run(feed=first, fetch_list=[y])[0].tolist() == [[14], [16]]
    assert exe.run(feed=second, fetch_list=[y])[0].tolist() == [[10], [12]]
    assert list(second.copy().keys()) == ["x"]
    second["x"] = np.array([[1], [2]], np.float32)
    assert exe.run(feed=second[0], fetch_list=[y])[0].tolist() == [[2], [4]]


def test_the_queue_of_a_reader_that_has_not_started_is_empty() -> None:
    reader = L.py_reader(4, [(-1, 1)], ["float32"])
    reader.decorate_tensor_provider(batches)
    assert reader.queue.size() == 0


def test_tensors_of_a_predictor_have_a_shape(tmp_path: Path) -> None:
    x = fluid.data("x", [None, 4])
    out, exe = L.fc(x, 2), fluid.Executor()
    exe.run(fluid.default_startup_program())
    fluid.io.save_inference_model(str(tmp_path), ["x"], [out], exe)
    config = fluid.core.AnalysisConfig(str(tmp_path))
    config.switch_use_feed_fetch_ops(False)
    predictor = fluid.core.create_paddle_predictor(config)
    held = predictor.get_input_tensor("x")
    held.reshape([3, 4])
    assert held.shape() == [3, 4]
    held.copy_from_cpu(floats(3, 4))
    predictor.zero_copy_run()
    assert predictor.get_output_tensor(predictor.get_output_names()[0]).shape() == [3, 2]
    assert predictor.get_input_tensor_shape() == {"x": [-1, 4]}


def test_nested_structures_can_be_copied() -> None:
    from sparsefleet.fluid.layers import utils

    nested = [1, [2, {"a": 3}]]
    copied = utils.copy_mutable_vars(nested)
    assert copied == nested
    assert copied[1] is not nested[1]
    assert (utils.hold_mutable_vars(nested), utils.hold_mutable_vars([1, 2])) == (True, False)


@pytest.mark.parametrize(
    ("rows", "is_right"), [(1, True), (2, True), (4, True), (3, True), (8, False)]
)
def test_a_fed_size_is_that_of_each_place_that_gets_rows(rows: int, is_right: bool) -> None:
    rate = fluid.data("rate", [1])
    out = L.scale(rate, 2.0)
    parallel = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        places=fluid.cpu_places(4)
    )
    feed = {"rate": floats(rows)}
    if is_right:
        (found,) = fluid.Executor().run(parallel, feed=feed, fetch_list=[out])
        assert found.tolist() == (2 * floats(rows)).tolist()
    else:
        with pytest.raises(ValueError, match="rate"):
            fluid.Executor().run(parallel, feed=feed, fetch_list=[out])


def test_a_stored_value_is_used_if_it_is_read_before_it_is_computed() -> None:
    counter = L.create_global_var([1], 5.0, "float32", persistable=True, name="counter")
    other = L.create_global_var([1], 7.0, "float32", persistable=True, name="other")
    before = L.scale(counter, 1.0)
    L.assign(L.fill_constant([1], "float32", 1.0), counter)
    L.assign(before, other)  # never read before it is computed
    L.increment(other)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    found = exe.run(fetch_list=[before, counter, other])
    assert [value.item() for value in found] == [5.0, 1.0, 6.0]
    found = exe.run(fetch_list=[before, counter, other])
    assert [value.item() for value in found] == [1.0, 1.0, 2.0]


def test_a_variable_is_cloned_into_another_program() -> None:
    rate = fluid.default_main_program().global_block().create_var(name="rate", shape=[1])
    clone = fluid.default_startup_program().global_block()._clone_variable(rate)
    assert (clone.name, clone.shape, clone.persistable) == ("rate", (1,), True)
    other = fluid.Program().global_block()._clone_variable(rate, force_persistable=False)
    assert not other.persistable
    assert other.block is not rate.block


def test_paddle_batch_is_a_function_and_a_module() -> None:
    code = (
        "import paddle.batch as one\n"
        "from paddle.batch import batch\n"
        "import paddle\n"
        "assert one is batch is paddle.batch\n"
    )
    env = {**os.environ, "PYTHONPATH": PROVIDED_PATH}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=120)


def test_the_description_of_a_variable_changes_its_declaration() -> None:
    rows = L.create_global_var([8, 4], 1.0, "float32", persistable=True, name="rows")
    rows.desc.set_shape([-1, 4])
    out = L.scale(rows, 2.0)
    assert (rows.shape, rows.desc.shape(), out.shape) == ((-1, 4), [-1, 4], (-1, 4))
    rows.desc.set_lod_level(1)
    assert (rows.lod_level, rows.desc.name(), rows.desc.dtype()) == (1, "rows", "float32")


@pytest.mark.parametrize(("kind", "wanted"), [("avg", 17.5), ("max", 35.0)])
def test_an_image_that_lacks_less_than_a_stride_has_one_window(kind: str, wanted: float) -> None:
    out = L.pool2d(fluid.data("x", [None, 1, 6, 6]), 7, kind, pool_stride=7)
    assert out.shape == (-1, 1, 1, 1)
    (found,) = fluid.Executor().run(feed={"x": floats(1, 1, 6, 6)}, fetch_list=[out])
    assert found.item() == wanted
    with pytest.raises(ValueError, match="pool2d"):
        L.pool2d(fluid.data("x", [None, 1, 6, 6]), 7, kind, pool_stride=1)


def test_statistics_are_loaded_from_files_that_keep_them_beside_the_optimizer(
    tmp_path: Path,
) -> None:
    """Version 0.1 saved the statistics of batch_norm so."""
    loss = L.mean(L.batch_norm(L.fc(fluid.data("x", [None, 4]), 3)))
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    main, exe = fluid.default_main_program(), fluid.Executor()
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": floats(5, 4)}, fetch_list=[loss])
    kept = [one for one in main.list_vars() if one.persistable]
    learned = {one.name for one in main.global_block().learned_parameters()}
    for ending, names in (("pdparams", learned), ("pdopt", {one.name for one in kept} - learned)):
        chosen = [one for one in kept if one.name in names]
        fluid.io.save_vars(exe, str(tmp_path), main, chosen, filename=f"model.{ending}")
    before = {
        one.name: np.array(fluid.global_scope().find_var(one.name).get_tensor()) for one in kept
    }
    exe.run(fluid.default_startup_program())
    fluid.load(main, str(tmp_path / "model"), exe)
    for name, value in before.items():
        found = np.array(fluid.global_scope().find_var(name).get_tensor())
        np.testing.assert_array_equal(found, value, err_msg=name)


def test_a_pool_of_a_program_may_have_one_padding_per_axis() -> None:
    x = fluid.data("x", [1, 1, 2, 4])
    block = fluid.default_main_program().global_block()
    out = block.create_var(name="pooled", dtype="float32")
    attrs = {"pooling_type": "max", "ksize": [2, 2], "strides": [2, 2], "paddings": [1, 0]}
    block.append_op("pool2d", {"X": x}, {"Out": out}, attrs)
    (found,) = fluid.Executor().run(feed={"x": floats(1, 1, 2, 4)}, fetch_list=[out])
    assert found.tolist() == [[[[1.0, 3.0], [5.0, 7.0]]]]
