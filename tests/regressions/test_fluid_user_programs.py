"""Programs that run on the original and used to fail here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.fluid.core import EnforceNotMet
from sparsefleet.fluid.layers.control_flow import ConditionalBlock, select_input, select_output

pytestmark = pytest.mark.usefixtures("fresh_programs")
L = fluid.layers


def run(fetch: Any, **feed: Any) -> Any:
    return fluid.Executor().run(feed=feed, fetch_list=fetch, return_numpy=False)


def floats(values: Any) -> Any:
    return np.asarray(values, "float32")


def test_a_gradient_of_what_no_parameter_made_can_be_fetched() -> None:
    x = fluid.data("x", [1])
    doubled = 2.0 * x
    loss = L.mean(L.cond(x < 5.0, lambda: doubled * doubled, lambda: doubled))
    fluid.backward.append_backward(loss)
    (gradient,) = run([doubled.grad_name], x=floats([3.0]))
    assert np.allclose(gradient.numpy(), 12.0)


def test_the_given_gradient_of_a_target_has_gradients_too() -> None:
    x = L.create_parameter([2], "float32", default_initializer=fluid.initializer.Constant(3.0))
    square = x * x
    given = (
        fluid.default_main_program()
        .global_block()
        .create_var(name=square.grad_name, shape=[2], dtype="float32", persistable=True)
    )
    given.stop_gradient = False
    (first,) = fluid.gradients(square, x, given)
    (second,) = fluid.gradients(first, given)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    fluid.global_scope().var(given.name).get_tensor().set(floats([1.0, 2.0]))
    found = exe.run(fetch_list=[first, second])
    assert np.allclose(found[0], [6.0, 12.0])
    assert np.allclose(found[1], [6.0, 6.0])


def test_sequences_are_split_by_a_mask_and_merged_again() -> None:
    x = fluid.data("x", [None, 1], lod_level=1)
    x.stop_gradient = False
    mask = fluid.data("mask", [None, 1], "bool")
    true, false = L.split_lod_tensor(x, mask)
    merged = L.merge_lod_tensor(true * 2.0, false, x, mask)
    (gradient,) = fluid.gradients(L.reduce_sum(merged), x)
    rows = fluid.create_lod_tensor(floats(np.arange(6).reshape(6, 1)), [[1, 3, 2]])
    chosen = np.array([[False], [True], [False]])
    found = run([true, false, merged, gradient], x=rows, mask=chosen)
    assert found[0].lod() == [[0, 3]]
    assert found[1].lod() == [[0, 1, 3]]
    assert found[2].lod() == [[0, 1, 4, 6]]
    assert found[2].numpy()[:, 0].tolist() == [0, 2, 4, 6, 4, 5]
    assert found[3].numpy()[:, 0].tolist() == [1, 2, 2, 2, 1, 1]


def test_one_of_several_branches_gets_the_value_and_returns_it() -> None:
    x, mask = fluid.data("x", [2]), fluid.data("mask", [1], "int32")
    block = fluid.default_main_program().current_block()
    outs = select_output(x, [block.create_var(dtype="float32") for _ in range(3)], mask)
    picked = select_input(outs, mask)
    (found,) = run([picked], x=floats([1, 2]), mask=np.array([2], "int32"))
    assert found.numpy().tolist() == [1, 2]
    with pytest.raises(TypeError, match="int32"):
        select_input(outs, x)


def test_a_conditional_block_runs_if_its_input_is_not_empty() -> None:
    x = fluid.data("x", [None, 1])
    total = L.fill_constant([1], "float32", 0.0)
    with ConditionalBlock([x]).block():
        L.assign(L.reduce_sum(x), total)
    assert run([total], x=floats([[2], [3]]))[0].numpy() == 5.0
    assert run([total], x=np.zeros((0, 1), "float32"))[0].numpy() == 0.0


def test_with_fewer_samples_than_places_only_some_places_predict() -> None:
    x = fluid.data("x", [None, 2])
    out = L.relu(x)
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        places=fluid.cpu_places(4)
    )
    exe = fluid.Executor()
    for count in (1, 3, 6):
        fed = floats(np.arange(count * 2).reshape(count, 2) - 2)
        (found,) = exe.run(program, feed={"x": fed}, fetch_list=[out])
        assert np.array_equal(found, np.maximum(fed, 0))


def test_training_on_fewer_samples_than_places_is_refused() -> None:
    loss = L.mean(L.fc(fluid.data("x", [None, 2]), 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        loss_name=loss.name, places=fluid.cpu_places(2)
    )
    with pytest.raises(EnforceNotMet, match="1 samples for 2 replicas"):
        exe.run(program, feed={"x": floats([[1, 2]])}, fetch_list=[loss])


def test_a_declared_number_of_sequences_is_not_compared_with_rows() -> None:
    x = fluid.data("x", [2, 1], lod_level=1)
    rows = fluid.create_lod_tensor(floats(np.ones((5, 1))), [[2, 3]])
    (found,) = run([L.sequence_pool(x, "sum")], x=rows)
    assert found.numpy()[:, 0].tolist() == [2, 3]


def test_an_error_of_a_generator_is_an_enforce_error_of_its_own_type() -> None:
    class BrokenError(ValueError):
        pass

    def broken() -> Any:
        raise BrokenError("no more disk")
        yield

    x = fluid.data("x", [None, 1])
    loader = fluid.io.DataLoader.from_generator([x], capacity=2, iterable=True)
    loader.set_batch_generator(broken, fluid.cpu_places(1))
    with pytest.raises(EnforceNotMet, match="no more disk") as caught:
        next(iter(loader()))
    assert isinstance(caught.value, BrokenError)


def test_the_betas_of_adam_may_be_variables() -> None:
    losses = []
    first = fluid.initializer.Constant(0.2)
    for variables in (False, True):
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
            betas: Any = (0.9, 0.999)
            if variables:
                betas = [L.create_global_var([1], beta, "float32", True) for beta in betas]
            loss = L.mean(L.square(L.fc(fluid.data("x", [None, 2]), 1, param_attr=first) - 1.0))
            fluid.optimizer.Adam(0.1, *betas).minimize(loss)
            exe = fluid.Executor()
            exe.run(startup)
            feed = {"x": floats(np.ones((3, 2)))}
            losses.append([exe.run(main, feed, [loss])[0].item() for _ in range(5)])
    assert np.allclose(losses[0], losses[1], rtol=1e-3)
    assert losses[0][-1] < losses[0][0]


def test_mean_average_precision_is_carried_over_batches() -> None:
    found = fluid.data("found", [None, 6], lod_level=1)
    label, box = (
        fluid.data("label", [None, 1], lod_level=1),
        fluid.data("box", [None, 4], lod_level=1),
    )
    score = fluid.metrics.DetectionMAP(found, label, box, class_num=3, overlap_threshold=0.5)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())

    def batch(row: list[float]) -> Any:
        feed = {
            "found": fluid.create_lod_tensor(floats([row]), [[1]]),
            "label": fluid.create_lod_tensor(floats([[1]]), [[1]]),
            "box": fluid.create_lod_tensor(floats([[0, 0, 0.5, 0.5]]), [[1]]),
        }
        values = exe.run(feed=feed, fetch_list=list(score.get_map_var()))
        return [value.item() for value in values]

    assert batch([1, 0.9, 0, 0, 0.5, 0.5]) == [1.0, 1.0]
    assert batch([1, 0.8, 0.6, 0.6, 0.9, 0.9]) == [0.0, 0.5]
    score.reset(exe)
    assert batch([1, 0.9, 0, 0, 0.5, 0.5]) == [1.0, 1.0]


def test_a_mask_is_drawn_for_each_box_with_an_object() -> None:
    names = ("info", "classes", "crowd", "points", "rois", "labels")
    shapes = ([None, 3], [None, 1], [None, 1], [None, 2], [None, 4], [None, 1])
    kinds = ("float32", "int32", "int32", "float32", "float32", "int32")
    levels = (0, 1, 1, 3, 1, 1)
    declared = [
        fluid.data(name, shape, kind, level)
        for name, shape, kind, level in zip(names, shapes, kinds, levels, strict=True)
    ]
    rois, places, masks = L.generate_mask_labels(*declared, num_classes=2, resolution=4)
    feed = {
        "info": floats([[8, 8, 1]]),
        "classes": fluid.create_lod_tensor(np.array([[1]], "int32"), [[1]]),
        "crowd": fluid.create_lod_tensor(np.array([[0]], "int32"), [[1]]),
        "points": fluid.create_lod_tensor(
            floats([[0, 0], [4, 0], [4, 8], [0, 8]]), [[1], [1], [4]]
        ),
        "rois": fluid.create_lod_tensor(floats([[0, 0, 8, 8], [1, 1, 2, 2]]), [[2]]),
        "labels": fluid.create_lod_tensor(np.array([[1], [0]], "int32"), [[2]]),
    }
    found = run([rois, places, masks], **feed)
    assert found[0].numpy().tolist() == [[0, 0, 8, 8]]
    assert found[1].numpy().tolist() == [[0]]
    drawn = found[2].numpy().reshape(2, 4, 4)
    assert (drawn[0] == -1).all()
    assert drawn[1].tolist() == [[1, 1, 0, 0]] * 4


def test_a_module_that_only_has_names_can_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import runpy

    # Another test may have imported it; runpy warns about that.
    monkeypatch.delitem(sys.modules, "sparsefleet.fluid.reader", raising=False)
    assert "PyReader" not in runpy.run_module("sparsefleet.fluid.reader")


def test_an_element_type_has_its_number() -> None:
    assert int(fluid.core.VarDesc.VarType.INT64) == 3
    assert int(fluid.data("x", [1], "float32").dtype) == 5


def test_one_variable_is_saved_and_loaded_by_the_tools_of_fleet(tmp_path: Path) -> None:
    from sparsefleet.fluid.incubate.fleet.utils import utils

    L.fc(fluid.data("x", [None, 2]), 3, param_attr="weight")
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    fluid.io.save_persistables(exe, str(tmp_path))
    wanted = np.array(fluid.global_scope().find_var("weight").get_tensor())
    (found,) = utils.load_var("weight", [2, 3], "float32", str(tmp_path / "weight"))
    assert np.array_equal(found, wanted)
    utils.save_var(found + 1, "weight", [2, 3], "float32", str(tmp_path / "weight"))
    fluid.io.load_persistables(exe, str(tmp_path))
    assert np.array_equal(
        np.array(fluid.global_scope().find_var("weight").get_tensor()), wanted + 1
    )


def test_a_program_is_saved_listed_and_loaded_by_the_tools_of_fleet(tmp_path: Path) -> None:
    from sparsefleet.fluid.incubate.fleet.utils import utils

    out = L.fc(fluid.data("x", [None, 2]), 1, act="relu")
    program = fluid.default_main_program()
    utils.save_program(program, str(tmp_path / "model"))
    loaded = utils.load_program(str(tmp_path / "model"))
    assert [op.type for op in loaded.global_block().ops] == [
        op.type for op in program.global_block().ops
    ]
    assert utils.check_pruned_program_vars(program, loaded)
    utils.parse_program(loaded, str(tmp_path))
    assert "fc_0.w_0" in (tmp_path / "vars_persistable.log").read_text()
    single, pairs = fluid.contrib.op_freq_statistic(program)
    assert dict(single)["relu"] == 1
    assert "elementwise_add->relu" in dict(pairs)
    assert out.name in (tmp_path / "vars_all.log").read_text()


def test_a_program_built_again_starts_with_the_same_rows() -> None:
    found = []
    for _ in range(2):  # the second table has another name
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 1
        with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
            ids = fluid.data("ids", [None, 1], "int64")
            rows = L.embedding(ids, [9, 3], is_sparse=True)
            exe = fluid.Executor()
            exe.run(startup)
            found.append(exe.run(main, {"ids": np.array([[2], [5]])}, [rows])[0])
    assert np.array_equal(found[0], found[1])


def test_an_array_fills_a_parameter_of_another_shape_with_as_many_elements() -> None:
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.scope_guard(scope):
        first = fluid.initializer.NumpyArrayInitializer(np.arange(3, dtype="float32"))
        fluid.layers.create_parameter([3, 1], "float32", name="w", default_initializer=first)
        fluid.Executor().run(startup)
        assert np.array(scope.find_var("w").get_tensor()).tolist() == [[0.0], [1.0], [2.0]]
        with pytest.raises(ValueError, match=r"an array of shape \(3,\) for parameter 'v'"):
            fluid.layers.create_parameter([4], "float32", name="v", default_initializer=first)


def test_the_communicator_comes_with_the_modes_it_takes() -> None:
    from sparsefleet.fluid.communicator import Communicator, DistributedMode

    communicator = Communicator(fluid.Program(), DistributedMode.HALF_ASYNC)
    communicator.start()
    assert communicator.is_running()
    communicator.stop()
    assert [mode.name for mode in DistributedMode] == ["SYNC", "ASYNC", "HALF_ASYNC", "GEO"]
