"""Programs that are changed after a run: the next run uses the changed program."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid

L = fluid.layers
ONES = {"x": np.ones((4, 4), "float32")}


def weight() -> np.ndarray:
    return np.array(fluid.global_scope().find_var("w").get_tensor())


@pytest.mark.parametrize("places", [1, 2])
def test_an_operator_added_without_a_new_variable(places: int) -> None:
    mean = L.reduce_mean(fluid.data("x", [None, 4]))
    program: Any = fluid.default_main_program()
    if places > 1:
        program = fluid.CompiledProgram(program).with_data_parallel(places=fluid.cpu_places(places))
    exe = fluid.Executor()
    exe.run(program, ONES, [mean])
    block = fluid.default_main_program().global_block()
    block.append_op("scale", {"X": mean}, {"Out": mean}, {"scale": 10.0})
    np.testing.assert_allclose(exe.run(program, ONES, [mean])[0], [10.0] * places)


def test_a_setting_of_an_operator() -> None:
    double = L.scale(fluid.data("x", [None, 4]), 2.0)
    test = fluid.default_main_program().clone(for_test=True)
    exe = fluid.Executor()
    for program in (fluid.default_main_program(), test):
        exe.run(program, ONES, [double])
        program.global_block().ops[0]._set_attr("scale", 3.0)
        assert program.global_block().ops[0].all_attrs()["scale"] == 3.0
        np.testing.assert_allclose(exe.run(program, ONES, [double])[0], 3 * ONES["x"])


def test_a_variable_that_is_kept_from_now_on() -> None:
    double = L.scale(fluid.data("x", [None, 4]), 2.0)
    total = L.reduce_sum(double)
    exe = fluid.Executor()
    exe.run(feed=ONES, fetch_list=[total])
    double.persistable = True
    exe.run(feed=ONES, fetch_list=[total])
    held = fluid.global_scope().find_var(double.name)
    np.testing.assert_allclose(np.array(held.get_tensor()), 2 * ONES["x"])


@pytest.mark.parametrize("which", ["w", "hidden"])
def test_stop_gradient_after_minimize_comes_too_late(which: str) -> None:
    hidden = L.fc(fluid.data("x", [None, 4]), 1, param_attr="w", bias_attr=False)
    fluid.optimizer.SGD(0.1).minimize(L.mean(hidden))
    name = hidden.name if which == "hidden" else "w"
    fluid.default_main_program().global_block().var(name).stop_gradient = True
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    before = weight()
    exe.run(feed=ONES)
    np.testing.assert_allclose(weight(), before - 0.1, atol=1e-6)


def test_no_grad_set_is_that_of_one_loss() -> None:
    x = fluid.data("x", [None, 4])
    made = L.fc(x, 2, param_attr="w", bias_attr=False)
    judged = L.mean(L.fc(made, 1, param_attr="judge", bias_attr=False))
    fluid.optimizer.SGD(0.1).minimize(judged, no_grad_set={"w"})
    _, pairs = fluid.optimizer.SGD(0.1).minimize(L.mean(made), no_grad_set={"judge"})
    assert [parameter.name for parameter, _ in pairs] == ["w"]
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    before = weight()
    exe.run(feed=ONES)
    np.testing.assert_allclose(weight(), before - 0.05, atol=1e-6)


def test_threads_make_one_program_ready_at_once() -> None:
    x = fluid.data("x", [None, 4])
    scaled = [L.scale(x, float(number)) for number in range(6)]
    program, scope, exe = fluid.default_main_program(), fluid.Scope(), fluid.Executor()
    found: dict[int, list[float]] = {}
    begin = threading.Barrier(4)

    def run(index: int) -> None:
        begin.wait(30)
        found[index] = [
            float(exe.run(program, ONES, [value], scope=scope)[0][0, 0]) for value in scaled
        ]

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {index: [0.0, 1.0, 2.0, 3.0, 4.0, 5.0] for index in range(4)}
