"""Blocks within programs: loops, branches, arrays, and looking inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sparsefleet import fluid


@pytest.fixture
def program() -> Any:
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(scope):
        yield main


def counting_loop(times: int = 3) -> tuple[Any, Any]:
    """x, and x times 2 ** times."""
    layers = fluid.layers
    x = fluid.data("x", [None, 2])
    total = layers.assign(x)
    i = layers.fill_constant([1], "int64", 0)
    limit = layers.fill_constant([1], "int64", times)
    condition = layers.less_than(i, limit)
    with layers.While(condition).block():
        layers.assign(layers.dropout(total * 2.0, 0.5), total)
        layers.increment(i)
        layers.less_than(i, limit, cond=condition)
    return x, total


FEED = {"x": np.ones((1, 2), "float32")}


def test_program_with_blocks_survives_json_and_pruning(program: Any) -> None:
    _, total = counting_loop()
    test = program.clone(for_test=True)
    again = fluid.Program.from_json(test.to_json())
    pruned = again.prune([total.name], feeds=["x"])
    for made in (test, again, pruned):
        assert made.num_blocks == 2
        assert made.block(1).parent_idx == 0
        assert "while" in str(made)
        (found,) = fluid.Executor().run(made, FEED, [total.name])
        # Dropout is off, also in the loop: values are scaled by 0.5, as in 1.8.5's predictions.
        np.testing.assert_allclose(found, np.ones((1, 2)))


def test_copy_without_the_loop_leaves_its_block_empty(program: Any) -> None:
    x, _ = counting_loop()
    other = x * 3.0
    pruned = program.prune([other], feeds=["x"])
    assert [len(block.ops) for block in pruned.blocks] == [1, 0]


def test_rows_of_a_table_are_trained_from_within_a_loop(program: Any) -> None:
    layers = fluid.layers
    ids = fluid.data("ids", [3, 2], "int64")
    first = layers.fill_constant([2, 4], "float32", 0.0)
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(ids)
        rows = fluid.embedding(word, [100, 4], is_sparse=True)
        memory = rnn.memory(init=first)
        total = memory + rows
        rnn.update_memory(memory, total)
        rnn.step_output(total)
    loss = layers.mean(layers.square(rnn() - 1.0))
    fluid.optimizer.SGD(0.5).minimize(loss)
    assert program.all_parameters()[0].is_table
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    feed = {"ids": np.array([[1, 2], [3, 4], [1, 4]], "int64")}
    losses = [exe.run(feed=feed, fetch_list=[loss])[0].item() for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]


def test_an_array_can_be_fetched(program: Any) -> None:
    del program
    layers = fluid.layers
    x = fluid.data("x", [None, 2])
    i = layers.fill_constant([1], "int64", 0)
    array = layers.array_write(x, i)
    layers.array_write(x + 1.0, layers.increment(i), array)
    (found,) = fluid.Executor().run(feed=FEED, fetch_list=[array])
    assert [element.tolist() for element in found] == [[[1.0, 1.0]], [[2.0, 2.0]]]


def test_operators_with_effects_run_within_blocks(program: Any, capsys: Any) -> None:
    del program
    layers = fluid.layers
    x = fluid.data("x", [None, 2])
    condition = layers.less_than(layers.reduce_sum(x), layers.fill_constant([1], "float32", 5.0))
    layers.cond(condition, lambda: layers.Print(x, message="here") and None, None)
    fluid.Executor().run(feed=FEED)
    assert capsys.readouterr().out.splitlines()[0].split("\t")[1] == "here"
    fluid.Executor().run(feed={"x": np.full((1, 2), 9.0, "float32")})
    assert capsys.readouterr().out == ""


def test_print_shows_values_and_gradients_as_fluid_does(program: Any, capsys: Any) -> None:
    del program
    layers = fluid.layers
    x = fluid.data("x", [None, 3], lod_level=1)
    x.stop_gradient = False
    shown = layers.Print(x * 2.0, message="hello", summarize=4)
    fluid.gradients(layers.mean(shown), [x])
    rows = np.arange(9, dtype="float32").reshape(3, 3)
    feed = {"x": fluid.create_lod_tensor(rows, [[1, 2]])}
    fluid.Executor().run(feed=feed, fetch_list=["x@GRAD"], return_numpy=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:6] == [
        "Tensor[tmp_0]",
        "\tshape: [3,3,]",
        "\tdtype: f",
        "\tLoD: [[ 0,1,3, ]]",
        "\tdata: 0,2,4,6,",
    ]
    assert lines[7] == "Tensor[print_tmp_0_0.tmp_0@GRAD]"
    assert lines[11] == "\tdata: 0.111111,0.111111,0.111111,0.111111,"


def test_print_stops_after_first_n(program: Any, capsys: Any) -> None:
    del program
    fluid.layers.Print(fluid.data("x", [None, 2]), first_n=2, print_phase="forward")
    for _ in range(4):
        fluid.Executor().run(feed=FEED)
    assert capsys.readouterr().out.count("Tensor[x]") == 2


def test_py_func_computes_and_gives_gradients(program: Any) -> None:
    layers = fluid.layers
    x = fluid.data("x", [None, 2])
    x.stop_gradient = False
    out = program.current_block().create_var("y", [-1, 2], "float32")
    seen = []

    def backward(y: Any, gradient: Any) -> Any:
        seen.append(np.array(y).shape)
        return np.array(gradient) * (1 - np.array(y) ** 2)

    layers.py_func(lambda v: np.tanh(np.array(v)), x, out, backward, x)
    fluid.gradients(layers.reduce_sum(out), [x])
    y, gradient = fluid.Executor().run(feed=FEED, fetch_list=[out, "x@GRAD"])
    np.testing.assert_allclose(y, np.tanh(FEED["x"]), rtol=1e-6)
    np.testing.assert_allclose(gradient, 1 - np.tanh(FEED["x"]) ** 2, rtol=1e-5)
    assert seen == [(1, 2)]


def test_parallel_do_is_the_network_itself(program: Any) -> None:
    del program
    x = fluid.data("x", [None, 2])
    parallel = fluid.layers.ParallelDo(None)
    with parallel.do():
        parallel.write_output(parallel.read_input(x) * 2.0)
    (found,) = fluid.Executor().run(feed=FEED, fetch_list=[parallel()])
    assert found.tolist() == [[2.0, 2.0]]


def test_a_loop_that_cannot_end_is_refused(program: Any) -> None:
    del program
    layers = fluid.layers
    condition = layers.fill_constant([1], "bool", 1)
    with pytest.raises(fluid.framework.ProgramError, match="nothing in the loop writes"):
        with layers.While(condition).block():
            layers.fill_constant([1], "float32", 1)


def test_a_value_that_no_branch_made_is_named(program: Any) -> None:
    del program
    layers = fluid.layers
    x = fluid.data("x", [None, 2])
    out = layers.create_tensor("float32")
    condition = layers.less_than(layers.reduce_sum(x), layers.fill_constant([1], "float32", 0.0))
    with layers.Switch() as switch, switch.case(condition):
        layers.assign(x, out)
    doubled = out * 2.0
    with pytest.raises(fluid.framework.ProgramError, match=f"'{out.name}', which has no value"):
        fluid.Executor().run(feed=FEED, fetch_list=[doubled])


def test_reading_beyond_an_array_is_reported_at_the_line(program: Any) -> None:
    del program
    layers = fluid.layers
    array = layers.array_write(fluid.data("x", [None, 2]), layers.fill_constant([1], "int64", 0))
    item = layers.array_read(array, layers.fill_constant([1], "int64", 3))
    with pytest.raises(
        fluid.framework.ProgramError, match=r"test_control_flow.py.*nothing .* at index 3"
    ):
        fluid.Executor().run(feed=FEED, fetch_list=[item])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: fluid.layers.While(x), "bool with one element"),
        (lambda x: fluid.layers.cond(x > 0.0), "bool with one element"),
        (lambda _: fluid.layers.case([]), "list of"),
        (
            lambda x: fluid.layers.switch_case(x.astype("int64"), []),
            "map numbers to functions",
        ),
        (lambda x: fluid.layers.while_loop(1, 2, [x]), "must be functions"),
        (lambda x: fluid.layers.array_read(x, x), "dtype int64"),
        (lambda x: fluid.layers.StaticRNN().step_input(x), "within"),
        (lambda x: fluid.layers.DynamicRNN().step_input(x), "within"),
        (lambda x: fluid.layers.IfElse(x).input(x), "within"),
        (lambda _: fluid.layers.Switch().default().__enter__(), "within"),
    ],
)
def test_wrong_use_is_refused(program: Any, build: Any, message: str) -> None:
    del program
    with pytest.raises((TypeError, ValueError), match=message):
        build(fluid.data("x", [None, 2]))


def test_layered_lstm_is_torchs(program: Any) -> None:
    x = np.random.default_rng(0).normal(size=(4, 2, 3)).astype("float32")
    first = np.zeros((4, 2, 5), "float32")
    variables = [
        fluid.data(name, list(a.shape)) for name, a in (("x", x), ("h", first), ("c", first))
    ]
    out, last_h, last_c = fluid.layers.lstm(*variables, 4, 5, num_layers=2, is_bidirec=True)
    assert out.shape == (4, 2, 10)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    twin = torch.nn.LSTM(3, 5, 2, bidirectional=True)
    parts = [p for p in twin.parameters() if p.dim() == 2] + [
        p for p in twin.parameters() if p.dim() == 1
    ]
    flat = torch.cat([part.detach().reshape(-1) for part in parts]).numpy()
    weight = program.all_parameters()[0]
    assert weight.shape == flat.shape
    fluid.global_scope().find_var(weight.name).get_tensor().set(flat, fluid.CPUPlace())
    found = exe.run(feed={"x": x, "h": first, "c": first}, fetch_list=[out, last_h, last_c])
    wanted, (wanted_h, wanted_c) = twin(torch.from_numpy(x))
    for value, expected in zip(found, (wanted, wanted_h, wanted_c), strict=True):
        np.testing.assert_allclose(value, expected.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_memory_may_begin_with_what_the_step_took_from_outside(program: Any) -> None:
    layers = fluid.layers
    x, states = fluid.data("x", [3, 1, 2]), fluid.data("states", [2, 1, 2])
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(x)
        memory = rnn.memory(init=layers.squeeze(layers.slice(states, [0], [1], [2]), [0]) * 2.0)
        rnn.update_memory(memory, memory + word)
        rnn.step_output(memory)
    feed = {"x": np.ones((3, 1, 2), "float32"), "states": np.ones((2, 1, 2), "float32")}
    (found,) = fluid.Executor().run(feed=feed, fetch_list=[rnn()])
    assert found[:, 0, 0].tolist() == [2.0, 3.0, 4.0]
    assert "slice" in [op.type for op in program.global_block().ops]
    with pytest.raises(fluid.framework.ProgramError, match=r"test_control_flow.py.*outside the"):
        with (again := layers.StaticRNN()).step():
            again.memory(init=again.step_input(x))


def test_a_rate_chosen_by_a_switch_trains(program: Any) -> None:
    layers = fluid.layers
    with program._lr_schedule_guard():
        rate = layers.create_global_var([1], 0.0, "float32", persistable=True, name="rate")
        step = layers.learning_rate_scheduler._decay_step_counter()
        with layers.control_flow.Switch() as switch:
            with switch.case(step < 2.0):
                layers.assign(step * 0.5, rate)
            with switch.default():
                layers.assign(np.array([2.0], "float32"), rate)
    x = fluid.data("x", [None, 2])
    weight = layers.create_parameter(
        [2], "float32", name="w", default_initializer=fluid.initializer.Constant(0.0)
    )
    loss = layers.reduce_sum(layers.elementwise_mul(x, weight))
    test = program.clone(for_test=True)
    fluid.optimizer.SGD(rate).minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    found = [exe.run(program, FEED, [rate, weight]) for _ in range(4)]
    assert [rate.item() for rate, _ in found] == [0.0, 0.5, 2.0, 2.0]
    assert [w[0].item() for _, w in found] == [0.0, -0.5, -2.5, -4.5]
    exe.run(test, FEED, [loss.name])
    assert not any(op.has_sub_block for op in test.global_block().ops)
