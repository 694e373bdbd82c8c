"""Failures of public Fluid programs that run on the original."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.fluid.distributed.update_rules import RateProgram

pytestmark = pytest.mark.usefixtures("fresh_programs")
L = fluid.layers


def test_computing_a_rate_takes_no_batch_of_a_loader() -> None:
    x = fluid.data("x", [None, 1])
    loader = fluid.io.DataLoader.from_generator([x], capacity=2, iterable=False)
    rate = L.exponential_decay(0.5, decay_steps=1, decay_rate=0.5)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    rates = RateProgram(fluid.default_main_program(), [rate.name], fluid.global_scope())
    assert rates.at(1)[rate.name] == pytest.approx(0.25), "although it was never started"
    assert loader.queue.size() == 0


def test_replicas_share_a_feed_and_read_a_batch_of_a_loader_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CPU_NUM", "2")
    x, state = fluid.data("x", [None, 1]), fluid.data("state", [None, 1])
    loader = fluid.io.DataLoader.from_generator([x], capacity=2, iterable=False)
    total = x + state
    loss = L.mean(L.fc(total, 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())

    def batches() -> Iterator[list[np.ndarray]]:
        for number in range(4):
            yield [np.full((2, 1), number, "float32")]

    loader.set_batch_generator(batches)
    program = fluid.CompiledProgram(fluid.default_main_program())
    program.with_data_parallel(loss_name=loss.name)
    loader.start()
    fed = {"state": np.array([[0], [0], [10], [10]], "float32")}
    found = [exe.run(program, feed=fed, fetch_list=[total])[0].ravel() for _ in range(2)]
    assert [list(rows) for rows in found] == [[0, 0, 11, 11], [2, 2, 13, 13]]
    with pytest.raises(fluid.core.EOFException):
        exe.run(program, feed=fed, fetch_list=[total])


def test_a_layer_of_a_user_shares_a_counter_and_reads_its_arguments() -> None:
    helper = fluid.layer_helper.LayerHelper("hits", param_attr=[None, "second"], act=None)
    made, is_new = helper.create_or_get_global_variable(
        name="count", persistable=True, dtype="int64", shape=[1]
    )
    helper.set_variable_initializer(made, fluid.initializer.Constant(3))
    again, is_new_again = helper.create_or_get_global_variable(name="count", dtype="int64")
    assert again is made
    assert (is_new, is_new_again) == (True, False)
    assert [attr and attr.name for attr in helper.multiple_param_attr(2)] == [None, "second"]
    with pytest.raises(ValueError, match="2 param_attrs, expected 3"):
        helper.multiple_param_attr(3)
    with pytest.raises(TypeError, match="act must be a str, got a NoneType"):
        helper.is_instance("act", str)
    with pytest.raises(ValueError, match="count"):
        helper.get_parameter("count")
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    assert exe.run(fetch_list=[made])[0] == [3]


def test_a_variable_of_the_startup_program_is_created_with_its_first_value() -> None:
    startup = fluid.default_startup_program().global_block()
    for block, settings in (
        (startup, {"initializer": fluid.initializer.Constant(7)}),
        (fluid.default_main_program().global_block(), {}),
    ):
        tree = block.create_var(
            name="tree", dtype="int32", shape=[2, 2], persistable=True, **settings
        )
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    np.testing.assert_array_equal(exe.run(fetch_list=[tree + 0])[0], np.full((2, 2), 7))


def test_a_shape_found_once_is_not_taken_for_other_inputs() -> None:
    def open_shape(name: str, width: int) -> Any:
        return fluid.data(name, [None, None, width])

    a, b = open_shape("a", 4), open_shape("b", 4)
    for _ in range(2):
        assert L.stack([a, b], axis=1).shape == (-1, 2, -1, 4)
        assert L.stack([a, a, b], axis=1).shape == (-1, 3, -1, 4)
        assert L.stack([open_shape("c", 5)] * 2, axis=1).shape == (-1, 2, -1, 5)
        assert L.stack([a, b], axis=-1).shape == (-1, -1, 4, 2)
        assert L.cast(a, "int64").dtype == "int64"
        assert L.cast(a, "float64").dtype == "float64"


def test_a_library_reads_and_writes_parameters_by_name() -> None:
    from sparsefleet.fluid.executor import _fetch_var

    attr = fluid.ParamAttr._to_attr(fluid.initializer.Constant(2.0))
    attr.name = "policy.w"
    out = fluid.layers.fc(fluid.data("x", [None, 3]), 1, param_attr=attr, bias_attr=False)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    np.testing.assert_array_equal(_fetch_var("policy.w"), np.full((3, 1), 2.0, "float32"))
    _fetch_var("policy.w", return_numpy=False).set(np.ones((3, 1), "float32"), fluid.CPUPlace())
    (found,) = exe.run(feed={"x": np.ones((1, 3), "float32")}, fetch_list=[out])
    assert found.tolist() == [[3.0]]
    with pytest.raises(ValueError, match="'nothing' is not in the scope"):
        _fetch_var("nothing")


@pytest.mark.parametrize(
    ("given", "wanted"), [(None, None), (True, None), ("w", "w"), (fluid.ParamAttr("w"), "w")]
)
def test_a_library_converts_what_layers_take_as_attributes(given: Any, wanted: str | None) -> None:
    assert fluid.ParamAttr._to_attr(given).name == wanted
    assert [attr.name for attr in fluid.ParamAttr._to_attr([given, given])] == [wanted, wanted]


def test_a_library_converts_a_missing_bias_to_false() -> None:
    assert fluid.ParamAttr._to_attr(False) is False


def test_weight_decay_in_an_optimized_guard_as_bert_and_ernie_write_it() -> None:
    x = fluid.data("x", [None, 2])
    ones = fluid.ParamAttr("w", initializer=fluid.initializer.Constant(1.0))
    loss = L.mean(L.fc(x, 1, param_attr=ones, bias_attr=False))
    rate = L.create_global_var([1], 0.1, "float32", persistable=True)
    main = fluid.default_main_program()
    optimizer = fluid.optimizer.Adam(rate)
    optimizer._learning_rate_map[main] = rate
    before = {one.name: one * 1.0 for one in main.global_block().all_parameters()}
    _, pairs = optimizer.minimize(loss)
    for parameter, gradient in pairs:
        with (
            main._optimized_guard([parameter, gradient]),
            fluid.framework.name_scope("weight_decay"),
        ):
            L.assign(parameter - before[parameter.name] * 0.5 * rate, parameter)
    assert not any(op.type == "adam" for op in main.clone(for_test=True).global_block().ops)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    found = [exe.run(feed={"x": np.ones((2, 2), "float32")}, fetch_list=[loss])[0] for _ in "123"]
    np.testing.assert_allclose(np.ravel(found), [2.0, 1.7, 1.4150007], rtol=1e-5)  # as 1.8.5


def test_roles_of_operators_are_numbers_as_scripts_compare_them() -> None:
    roles = fluid.core.op_proto_and_checker_maker
    main = fluid.default_main_program()
    loss = L.mean(L.fc(fluid.data("x", [None, 2]), 1))
    fluid.optimizer.SGD(L.exponential_decay(0.1, 10, 0.5)).minimize(loss)
    key = roles.kOpRoleAttrName()
    counts = {
        name: sum(
            key in op.attr_names and int(op.all_attrs()[key]) == int(getattr(roles.OpRole, name))
            for op in main.global_block().ops
        )
        for name in ("Forward", "Backward", "Optimize", "LRSched")
    }
    assert all(counts.values()), counts
    with main._backward_role_guard():
        assert main._current_role == roles.OpRole.Backward
    main._current_role = roles.OpRole.Optimize
    assert L.relu(loss).block.ops[-1].role == "optimize"
    main._current_role = roles.OpRole.Optimize | roles.OpRole.LRSched
    assert main.role == "schedule"


def test_operators_can_be_inserted_and_removed() -> None:
    x = fluid.data("x", [None, 2])
    block = fluid.default_main_program().global_block()
    y = L.scale(x, 2.0)
    block._insert_op(0, type="scale", inputs={"X": x}, outputs={"Out": x}, attrs={"scale": 10.0})
    feed, exe = {"x": np.ones((1, 2), "float32")}, fluid.Executor()
    assert exe.run(feed=feed, fetch_list=[y])[0].tolist() == [[20.0, 20.0]]
    block._remove_op(0)
    assert exe.run(feed=feed, fetch_list=[y])[0].tolist() == [[2.0, 2.0]]
