"""Kinds of programs of the original's test suite that nobody here had tried."""

from __future__ import annotations

import importlib
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparsefleet import fluid
from sparsefleet.fluid.fleet.distribute_transpiler import wait_server_ready
from sparsefleet.fluid.paddle.plotting import Ploter

L = fluid.layers


@pytest.fixture(autouse=True)
def fresh_programs() -> Any:
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
    ):
        yield


def run(fetch: Any, **feed: Any) -> Any:
    return fluid.Executor().run(feed=feed, fetch_list=fetch)


def floats(*sizes: int) -> Any:
    return np.arange(np.prod(sizes), dtype="float32").reshape(sizes)


def test_the_index_minus_one_may_be_a_variable() -> None:
    x, last = fluid.data("x", [3, 4]), L.fill_constant([1], "int32", -1)
    found = run([x[last], x[:, last], x[last, 0:4:2]], x=floats(3, 4))
    for value, wanted in zip(
        found, (floats(3, 4)[-1], floats(3, 4)[:, -1], floats(3, 4)[-1, ::2]), strict=True
    ):
        np.testing.assert_array_equal(value, wanted)


def test_sizes_may_be_a_row_of_a_matrix() -> None:
    x = fluid.data("x", [2, 6])
    sizes = L.data("sizes", [1, 3], append_batch_size=False, dtype="int32")
    out = L.reshape(x, [2, 2, 3], actual_shape=sizes)
    (found,) = run([out], x=floats(2, 6), sizes=np.array([2, 3, 2], "int32"))
    assert found.shape == (2, 3, 2)


def test_limits_of_clamp_may_be_variables() -> None:
    x, low, high = fluid.data("x", [4]), fluid.data("low", [1]), fluid.data("high", [1])
    outs = [L.clamp(x, low, high), L.clamp(x, min=low), L.clamp(x, 1.0, high)]
    limits = {"low": np.float32([0.5]), "high": np.float32([2.5])}
    found = run(outs, x=floats(4), **limits)
    assert [value.tolist() for value in found] == [
        [0.5, 1.0, 2.0, 2.5],
        [0.5, 1.0, 2.0, 3.0],
        [1.0, 1.0, 2.0, 2.5],
    ]


def test_a_second_order_gradient_of_zeros_can_be_fetched() -> None:
    x = fluid.data("x", [3])
    x.stop_gradient = False
    (first,) = fluid.gradients(L.abs(x), x)
    (second,) = fluid.gradients(first, x)
    (found,) = run([second], x=floats(3))
    assert found.tolist() == [0.0, 0.0, 0.0]


def test_an_array_that_is_kept_is_in_the_scope() -> None:
    x = fluid.data("x", [None, 1], lod_level=1)
    array = L.lod_tensor_to_array(x, L.lod_rank_table(x))
    array.persistable = True
    run([], x=fluid.create_lod_tensor(floats(3, 1), [[2, 1]]))
    kept = fluid.global_scope().find_var(array.name)
    assert kept is not None
    held = kept.get_lod_tensor_array()
    assert [one.numpy().ravel().tolist() for one in held] == [[0.0, 2.0], [1.0]]


def test_a_variable_may_stand_for_a_number() -> None:
    x, one = fluid.data("x", [2, 4]), L.fill_constant([1], "int32", 1)
    found = run(
        [
            L.concat([x, x], axis=one),
            L.unsqueeze(x, axes=one),
            *L.split(x, 2, dim=one),
            L.reshape(x, [one, 8]),
            L.expand(x, [one, 2]),
            L.topk(x, one)[0],
            x[one:, :],
        ],
        x=floats(2, 4),
    )
    shapes = [value.shape for value in found]
    assert shapes == [(2, 8), (2, 1, 4), (2, 2), (2, 2), (1, 8), (2, 8), (2, 1), (1, 4)]


def test_only_chosen_gradients_are_clipped() -> None:
    x = fluid.data("x", [None, 3])
    zero = fluid.initializer.Constant(0.0)
    parts = [
        L.fc(x, 1, bias_attr=False, param_attr=fluid.ParamAttr(name=name, initializer=zero))
        for name in ("free", "held")
    ]
    clip = fluid.clip.GradientClipByGlobalNorm(0.5, need_clip=lambda one: one.name == "held")
    fluid.optimizer.SGD(1.0, grad_clip=clip).minimize(L.mean(parts[0] + parts[1]))
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": np.ones((2, 3), "float32")})
    moved = [fluid.global_scope().find_var(name).get_tensor().numpy() for name in ("free", "held")]
    assert np.linalg.norm(moved[0]) == pytest.approx(np.sqrt(3.0))
    assert np.linalg.norm(moved[1]) == pytest.approx(0.5)


def test_the_number_of_a_branch_may_be_a_byte() -> None:
    index = fluid.data("index", [1], "uint8")
    out = L.switch_case(
        index, {number: lambda n=number: L.ones([1], "float32") * n for number in (1, 2)}
    )
    (found,) = run([out], index=np.uint8([1]))
    assert found.tolist() == [1.0]
    with pytest.raises(TypeError, match="branch_index must have the dtype"):
        L.switch_case(fluid.data("x", [1]), [lambda: index])


def test_labels_declared_as_floats_may_be_fed_as_integers() -> None:
    x, label = fluid.data("x", [None, 2]), L.data("label", [1], dtype="float32")
    loss = L.softmax_with_cross_entropy(x, label)
    (found,) = run([loss], x=np.zeros((3, 2), "float32"), label=np.zeros((3, 1), "int64"))
    np.testing.assert_allclose(found, np.log(2.0), rtol=1e-6)


def test_a_seed_can_be_that_of_all_later_programs() -> None:
    program = fluid.Program()
    program.global_seed(7)
    try:
        assert program.random_seed == fluid.Program().random_seed == 7
    finally:
        program.global_seed(0)


def test_a_predictors_config_answers_what_it_is_asked() -> None:
    config = fluid.core.AnalysisConfig("model/__model__", "model/params")
    config.pass_builder().delete_pass("fc_fuse_pass")
    assert not config.use_gpu()
    assert (config.prog_file(), config.params_file()) == ("model/__model__", "model/params")


def test_details_of_a_program_are_printed_on_request() -> None:
    L.fc(fluid.data("x", [None, 2]), 1)
    program = fluid.default_main_program()
    assert len(program.to_string(False, with_details=True)) > len(program.to_string(True))


def test_nan_raises_the_type_that_programs_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGS_check_nan_inf", "1")
    with pytest.raises(fluid.core.EnforceNotMet) as raised:
        run([L.log(fluid.data("x", [2]))], x=np.float32([-1, 1]))
    assert type(raised.value) is fluid.core.EnforceNotMet


def test_an_item_of_a_loader_has_as_many_feeds_as_places() -> None:
    reader = fluid.io.PyReader([fluid.data("x", [None, 1]), fluid.data("y", [None, 1])], 2)
    reader.decorate_batch_generator(lambda: iter([[floats(2, 1)] * 2]), fluid.cpu_places(1))
    (item,) = reader()
    assert len(item) == 1
    assert item[0]["x"]._place()._equals(fluid.CPUPlace())
    assert fluid.CPUPlace()._type() != fluid.CUDAPinnedPlace()._type()


def test_layers_of_imperative_mode_are_names_of_fluid_itself() -> None:
    class Net(fluid.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.part = fluid.Linear(3, 1)

        def forward(self, x: Any) -> Any:
            return self.part(x)

    with fluid.dygraph.guard():
        loss = L.reduce_mean(Net()(fluid.dygraph.to_variable(floats(2, 3))))
        loss.backward(fluid.dygraph.BackwardStrategy())


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("layers.nn", "LayerHelper core check_type in_dygraph_mode"),
        ("data_feeder", "check_variable_and_dtype check_type check_dtype convert_dtype"),
        ("optimizer", "framework append_backward append_gradient_clip_ops unique_name"),
        ("executor", "as_numpy core global_scope"),
        ("clip", "ClipByNorm error_clip_callback"),
        ("unique_name", "UniqueNameGenerator"),
        ("io", "Dataset BatchSampler default_collate_fn"),
        ("dataloader.dataset", "Dataset"),
    ],
)
def test_names_that_modules_import_are_found_in_them(module: str, names: str) -> None:
    found = importlib.import_module(f"sparsefleet.fluid.{module}")
    assert all(getattr(found, name) for name in names.split())


def test_wrong_arguments_raise_the_types_that_programs_expect() -> None:
    for error in (TypeError, ValueError):
        with pytest.raises(error, match="dtype must be one of"):
            L.fill_constant([1], "uint4", 5)
    x = fluid.data("x", [None, 4])
    with pytest.raises(TypeError):
        L.warpctc(x, np.int64([1]))
    with pytest.raises(TypeError, match="input must"):
        fluid.embedding(x, [10, 4])


def test_a_layer_of_a_user_checks_its_arguments_as_layers_do() -> None:
    from sparsefleet.fluid.data_feeder import check_dtype, check_type, check_variable_and_dtype

    x = fluid.data("x", [None, 3])
    check_variable_and_dtype(x, "x", ["float32", "float64"], "mine")
    check_type(3, "size", (int, float), "mine")
    with pytest.raises(TypeError, match="mine: x must have the dtype int64"):
        check_variable_and_dtype(x, "x", ["int64"], "mine")
    with pytest.raises(TypeError, match="size must be of type"):
        check_type("3", "size", int, "mine")
    with pytest.raises(TypeError, match="got float32"):
        check_dtype(np.float32, "dtype", "int32", "mine")


def test_a_loader_reads_a_numbered_dataset_by_a_sampler() -> None:
    class Squares(fluid.io.Dataset):  # type: ignore[misc]
        def __getitem__(self, idx: int) -> Any:
            return np.float32([idx]), np.float32([idx * idx])

        def __len__(self) -> int:
            return 5

    sampler = fluid.io.BatchSampler(Squares(), batch_size=2, drop_last=True)
    feed_list = [fluid.data("x", [None, 1]), fluid.data("y", [None, 1])]
    loader = fluid.io.DataLoader(
        Squares(),
        feed_list=feed_list,
        places=fluid.cpu_places(1),
        batch_sampler=sampler,
        collate_fn=fluid.io.default_collate_fn,
    )
    found = [item[0]["y"].numpy().ravel().tolist() for item in loader]
    assert found == [[0.0, 1.0], [4.0, 9.0]]
    with pytest.raises(NotImplementedError, match="no __len__"):
        len(fluid.io.Dataset())


def test_waiting_for_servers_ends_once_they_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        wait_server_ready([f"127.0.0.1:{server.getsockname()[1]}"])
    with pytest.raises(AssertionError, match="list of 'host:port'"):
        wait_server_ready("127.0.0.1:1")


def test_a_monitor_hands_values_of_a_scope_to_a_handler() -> None:
    seen = threading.Event()

    class Handler(fluid.executor.FetchHandler):  # type: ignore[misc]
        def handler(self, res_dict: dict[str, Any]) -> None:
            assert res_dict["later"] is None
            assert res_dict["w"].tolist() == [1.0]
            seen.set()

    scope, block = fluid.Scope(), fluid.Program().global_block()
    wanted = {"w": block.create_var(name="w"), "later": block.create_var(name="later")}
    scope.var("w").get_tensor().set(np.float32([1]), fluid.CPUPlace())
    monitor = fluid.trainer_factory.FetchHandlerMonitor(scope, Handler(wanted, 0.01))
    monitor.start()
    assert seen.wait(60)
    monitor.stop()


def test_curves_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DISABLE_PLOT", "True")
    curves = Ploter("train", "test")
    curves.append("train", 0, 1.0)
    curves.plot(str(tmp_path / "curve.png"))
    curves.reset()
    with pytest.raises(AssertionError, match="no curve 'other'"):
        curves.append("other", 0, 1.0)


def test_lengths_that_do_not_match_the_rows_are_refused() -> None:
    tensor = fluid.LoDTensor(torch.zeros(3, 1))
    with pytest.raises(fluid.core.EnforceNotMet, match="do not match a tensor of 3 rows"):
        tensor.set_recursive_sequence_lengths([[2, 2]])
    with pytest.raises(ValueError, match="random_seed must be an int"):
        fluid.default_main_program().random_seed = "seed"  # type: ignore[assignment]
