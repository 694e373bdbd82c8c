"""Programs: names, shapes, copies, JSON."""

from __future__ import annotations

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.fluid.framework import ProgramError

L = fluid.layers


def network() -> tuple[fluid.Variable, fluid.Variable]:
    x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1], "int64")
    hidden = L.dropout(L.fc(x, 8, act="relu"), 0.5)
    return L.mean(L.cross_entropy(L.fc(hidden, 3, act="softmax"), y)), hidden


def test_names_are_those_of_fluid() -> None:
    x, ids = fluid.data("x", [None, 4]), fluid.data("ids", [None, 1], "int64")
    out = L.fc([x, x], 2, act="relu")
    rows = L.embedding(ids, [10, 3])
    names = [parameter.name for parameter in fluid.default_main_program().all_parameters()]
    assert names == ["fc_0.w_0", "fc_0.w_1", "fc_0.b_0", "embedding_0.w_0"]
    assert (out.name, rows.name) == ("fc_0.tmp_4", "embedding_0.tmp_0")
    assert L.fc(x, 2, name="mine").name == "mine.tmp_1"
    assert (x + 1.0).name == "tmp_0"


def test_a_guard_restarts_the_count_of_names_and_may_prefix_them() -> None:
    assert fluid.unique_name.generate("fc") == "fc_0"
    with fluid.unique_name.guard("A/"):
        assert fluid.unique_name.generate("fc") == "A/fc_0"
    assert fluid.unique_name.generate("fc") == "fc_1"


def test_shapes_keep_the_open_batch() -> None:
    x = fluid.data("x", [None, 4, 6])
    assert L.reshape(x, [-1, 8]).shape == (-1, 8)
    assert L.transpose(x, [1, 0, 2]).shape == (4, -1, 6)
    assert L.concat([x, x], axis=0).shape == (-1, 4, 6)
    assert L.reduce_mean(x, dim=1, keep_dim=True).shape == (-1, 1, 6)
    assert L.fc(x, 5, num_flatten_dims=2).shape == (-1, 4, 5)
    assert L.topk(x, 2)[1].dtype == "int64"


def test_parameters_of_one_name_are_shared_and_must_fit() -> None:
    ids = fluid.data("ids", [None, 1], "int64")
    for _ in range(2):
        L.embedding(ids, [10, 3], param_attr="shared")
    assert len(fluid.default_main_program().all_parameters()) == 1
    assert len(fluid.default_startup_program().global_block().ops) == 1
    with pytest.raises(ProgramError, match="shared"):
        L.embedding(ids, [10, 4], param_attr="shared")


def test_clone_for_test_drops_training_and_rests_dropout() -> None:
    loss, hidden = network()
    fluid.optimizer.Adam(0.1).minimize(loss)
    main = fluid.default_main_program()
    test = main.clone(for_test=True)
    assert {op.role for op in test.global_block().ops} == {"forward"}
    assert not any("@GRAD" in v.name or "moment" in v.name for v in test.list_vars())
    assert len(main.clone().global_block().ops) == len(main.global_block().ops)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    feed = {"x": np.ones((2, 4), "float32"), "y": np.zeros((2, 1), "int64")}
    first, second = (exe.run(test, feed, [hidden])[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_prune_keeps_what_the_targets_need() -> None:
    _, hidden = network()
    pruned = fluid.default_main_program().prune([hidden], feeds=["x"])
    assert [op.type for op in pruned.global_block().ops] == [
        "mul",
        "elementwise_add",
        "relu",
        "dropout",
    ]
    assert not pruned.global_block().has_var("y")
    with pytest.raises(ProgramError, match="'lost'"):
        fluid.default_main_program().prune(["lost"])


def test_a_program_comes_back_from_json_and_trains_the_same() -> None:
    loss, _ = network()
    fluid.default_main_program().random_seed = 5
    fluid.default_startup_program().random_seed = 5
    attr = fluid.ParamAttr(regularizer=fluid.regularizer.L2Decay(0.1))
    L.create_parameter([2], "float32", attr=attr)
    fluid.optimizer.SGD(0.1).minimize(loss)
    programs = (fluid.default_main_program(), fluid.default_startup_program())
    texts = [program.to_json() for program in programs]
    copies = [fluid.Program.from_json(text) for text in texts]
    assert [copy.to_json() for copy in copies] == texts
    feed = {"x": np.ones((2, 4), "float32"), "y": np.zeros((2, 1), "int64")}
    losses = []
    for main, startup in (programs, copies):
        with fluid.scope_guard(fluid.Scope()):
            exe = fluid.Executor()
            exe.run(startup)
            losses.append([exe.run(main, feed, [loss.name])[0].item() for _ in range(3)])
    assert losses[0] == losses[1]
    assert losses[0][0] != losses[0][2]


@pytest.mark.parametrize("text", ["", "[]", '{"format": "other"}', '{"format_version": 2}'])
def test_other_texts_are_not_programs(text: str) -> None:
    with pytest.raises(ProgramError, match="not a program"):
        fluid.Program.from_json(text)


def test_a_program_prints_variables_and_operators() -> None:
    network()
    text = fluid.default_main_program().to_string(True)
    assert "Parameter('fc_0.w_0', shape=(4, 8), dtype='float32')" in text
    assert "relu(inputs={X=['fc_0.tmp_1']})" in text


def test_stop_gradient_stops_it() -> None:
    x = fluid.data("x", [None, 4])
    first = L.fc(x, 4)
    first.stop_gradient = True
    loss = L.mean(L.fc(first, 1))
    pairs = fluid.backward.append_backward(loss)
    assert [parameter.name for parameter, _ in pairs] == ["fc_1.w_0", "fc_1.b_0"]


def test_gradients_of_variables_can_be_fetched_by_name() -> None:
    x = fluid.data("x", [None, 2])
    hidden = L.scale(L.fc(x, 2), 3.0)
    fluid.backward.append_backward(L.mean(hidden))
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    feed = {"x": np.ones((2, 2), "float32")}
    first, last = exe.run(feed=feed, fetch_list=["fc_0.tmp_1@GRAD", hidden.name + "@GRAD"])
    np.testing.assert_allclose(first, np.full((2, 2), 0.75))
    np.testing.assert_allclose(last, np.full((2, 2), 0.25))


def test_two_losses_train_their_own_parameters() -> None:
    x = fluid.data("x", [None, 2])
    hidden = L.fc(x, 2, param_attr=fluid.ParamAttr("a", fluid.initializer.Constant(1.0)))
    first = L.mean(hidden)
    second = L.mean(L.fc(hidden, 1, param_attr=fluid.ParamAttr("b", fluid.initializer.Constant())))
    fluid.optimizer.SGD(1.0).minimize(first, parameter_list=["a"])
    fluid.optimizer.SGD(1.0).minimize(second, parameter_list=["b"])
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": np.ones((3, 2), "float32")})
    values = {
        name: np.array(fluid.global_scope().find_var(name).get_tensor()) for name in ("a", "b")
    }
    np.testing.assert_allclose(values["a"], np.full((2, 2), 0.5))
    np.testing.assert_allclose(values["b"], np.full((2, 1), -2.0))


def test_several_losses_with_a_table_are_refused() -> None:
    ids = fluid.data("ids", [None], "int64")
    rows = fluid.embedding(ids, [10, 2], is_sparse=True)
    for factor in (1.0, 2.0):
        fluid.optimizer.SGD(factor).minimize(L.mean(rows * factor))
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    with pytest.raises(ProgramError, match="or sum the losses"):
        exe.run(feed={"ids": np.array([1])})


def test_names_continue_after_a_switch_back() -> None:
    first = fluid.unique_name.generate("switched")
    counts, checker = fluid.unique_name.switch()
    assert fluid.unique_name.generate("switched") == "switched_0"
    fluid.unique_name.switch(counts, checker)
    assert fluid.unique_name.generate("switched") != first
