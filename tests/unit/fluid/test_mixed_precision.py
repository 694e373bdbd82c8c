"""Half precision with float32 parameters, and the scale of the loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparsefleet import fluid
from sparsefleet.fluid.contrib.mixed_precision import AutoMixedPrecisionLists, decorate, fp16_utils
from sparsefleet.fluid.lowering.registry import find_op

L = fluid.layers


def numpy_attr(values: Any, name: str) -> fluid.ParamAttr:
    array = np.asarray(values, "float32")
    return fluid.ParamAttr(
        name=name, initializer=fluid.initializer.NumpyArrayInitializer(array), learning_rate=1.0
    )


def started() -> fluid.Executor:
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    return exe


def held(name: str) -> Any:
    return np.array(fluid.global_scope().find_var(name).get_tensor())


def one_weight(optimizer: Any) -> fluid.Variable:
    """The mean of x * w, w of three ones."""
    x = fluid.data("x", [None, 3])
    weight = numpy_attr(np.ones((3, 1)), "w")
    loss = L.mean(L.fc(x, 1, param_attr=weight, bias_attr=False))
    optimizer.minimize(loss)
    return loss


def feed_of(number: float) -> dict[str, Any]:
    return {"x": np.full((2, 3), number, "float32")}


def test_products_are_bfloat16_and_parameters_float32() -> None:
    x = fluid.data("x", [None, 3])
    product = L.fc(x, 4, param_attr=fluid.ParamAttr("w"), bias_attr=False)
    loss = L.mean(product)
    decorate(fluid.optimizer.SGD(0.1)).minimize(loss)
    assert product.dtype == "float16"
    exe = started()
    before = held("w")
    fed = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    found = exe.run(feed={"x": fed}, fetch_list=[product])[0]
    halves = [torch.from_numpy(value).bfloat16() for value in (fed, before)]
    np.testing.assert_array_equal(found, (halves[0] @ halves[1]).float().numpy())
    assert fluid.global_scope().find_var("w").value().dtype is torch.float32
    # the gradient arrives in float32, and so does an update too small for bfloat16
    step = 0.1 * np.tile(halves[0].float().numpy().sum(0, keepdims=True).T / 20, (1, 4))
    np.testing.assert_allclose(before - held("w"), step, rtol=0.02, atol=1e-4)


POOL = {"ksize": [2, 2], "strides": [2, 2], "paddings": [0, 0]}
SCRIPT = [1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1]
RECORDED = [
    *[(8.0, 1, 0), (8.0, 2, 0), (16.0, 0, 0), (16.0, 1, 0), (16.0, 0, 1), (16.0, 1, 0)],
    *[(16.0, 0, 1), (4.8, 0, 0), (4.8, 0, 1), (1.44, 0, 0), (1.44, 0, 1), (1.0, 0, 0)],
    *[(1.0, 1, 0), (1.0, 2, 0), (1.0, 0, 1), (1.0, 1, 0), (1.0, 2, 0), (2.0, 0, 0)],
    *[(2.0, 1, 0), (2.0, 2, 0), (4.0, 0, 0)],
]
"""Scale, good and bad steps after each, of 1.8.5's update_loss_scaling: 8, every 2, 1, 2.0, 0.3."""


def test_the_scale_follows_a_script_as_in_the_original() -> None:
    optimizer = decorate(fluid.optimizer.SGD(0.01), None, 8.0, 2, 1, 2.0, 0.3)
    one_weight(optimizer)
    exe = started()
    names = [optimizer.get_loss_scaling().name, "num_good_steps_0", "num_bad_steps_0"]
    for finite, known in zip(SCRIPT, RECORDED, strict=True):
        exe.run(feed=feed_of(1.0 if finite else np.inf))
        np.testing.assert_allclose([held(name)[0] for name in names], known, rtol=1e-6)


def test_a_scale_does_not_grow_beyond_float32() -> None:
    optimizer = decorate(fluid.optimizer.SGD(0.01), None, 2.0**10, 1, incr_ratio=1e38)
    one_weight(optimizer)
    exe = started()
    for _ in range(4):
        (scale,) = exe.run(feed=feed_of(1e-30), fetch_list=[optimizer.get_loss_scaling()])
    assert scale[0] == 2.0**10


def test_an_overflow_changes_neither_parameters_nor_what_the_optimizer_keeps() -> None:
    momentum = fluid.optimizer.Momentum(
        0.5,
        0.9,
        regularization=fluid.regularizer.L2Decay(0.1),
        grad_clip=fluid.clip.GradientClipByGlobalNorm(9.0),
    )
    optimizer = decorate(momentum, None, 8.0, decr_every_n_nan_or_inf=1)
    one_weight(optimizer)
    exe = started()
    scales = []
    for number in (1.0, np.inf, np.nan, 1.0):
        before = held("w"), held("w_velocity_0")
        scales += exe.run(feed=feed_of(number), fetch_list=[optimizer.get_loss_scaling()])
        after = held("w"), held("w_velocity_0")
        changed = [not np.array_equal(*pair) for pair in zip(before, after, strict=True)]
        assert changed == [np.isfinite(number)] * 2
    np.testing.assert_allclose(np.concatenate(scales), [8.0, 8.0, 6.4, 6.4])


def test_gradients_given_back_are_those_of_the_loss_itself() -> None:
    x = fluid.data("x", [None, 3])
    loss = L.mean(L.fc(x, 1, param_attr=fluid.ParamAttr("w"), bias_attr=False))
    optimizer = decorate(fluid.optimizer.SGD(0.5), None, 64.0, use_dynamic_loss_scaling=False)
    _, pairs = optimizer.minimize(loss)
    scaled = optimizer.get_scaled_loss()
    values = started().run(feed=feed_of(1.0), fetch_list=[pairs[0][1], loss, scaled])
    np.testing.assert_allclose(values[0], np.ones((3, 1)))
    np.testing.assert_allclose(values[2], values[1] * 64.0)


def trained(is_mixed: bool, lists: AutoMixedPrecisionLists | None = None) -> tuple[Any, ...]:
    """Losses and a weight of a small network after some steps."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with (
        fluid.program_guard(main, startup),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
    ):
        x, ids = fluid.data("x", [None, 4]), fluid.data("ids", [None, 1], "int64")
        rows = L.embedding(ids, [9, 4], is_sparse=True, param_attr=fluid.ParamAttr("rows"))
        hidden = L.fc(L.concat([x, rows], 1), 8, act="relu", param_attr=fluid.ParamAttr("w"))
        loss = L.mean(L.square(L.fc(hidden, 1)))
        optimizer: Any = fluid.optimizer.Adam(0.01)
        if is_mixed:
            optimizer = decorate(optimizer, lists, 1.0, use_dynamic_loss_scaling=False)
        optimizer.minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        draw = np.random.default_rng(0)
        losses = []
        for _ in range(5):
            numbers = draw.normal(size=(6, 4)).astype("float32")
            feed = {"x": numbers, "ids": draw.integers(0, 9, (6, 1))}
            losses.append(exe.run(main, feed, [loss])[0].item())
        return losses, held("w"), held("rows")


def test_with_everything_black_and_a_scale_of_one_nothing_changes() -> None:
    black = AutoMixedPrecisionLists(custom_black_list={"mul", "matmul", "conv2d"})
    for mixed, plain in zip(trained(True, black), trained(False), strict=True):
        np.testing.assert_array_equal(mixed, plain)


def test_half_precision_trains_like_float32_within_its_rounding() -> None:
    mixed, plain = trained(True), trained(False)
    np.testing.assert_allclose(mixed[0], plain[0], rtol=0.02)
    assert not np.array_equal(mixed[0], plain[0])


OF_TWO = ("add", "sub", "mul", "div", "max", "min", "pow", "mod")
OF_ONE = ("relu", "relu6", "leaky_relu", "soft_relu", "tanh", "sigmoid", "sign")


@pytest.mark.parametrize(
    ("kind", "inputs", "settings"),
    [
        *((f"elementwise_{name}", 2, {}) for name in OF_TWO),
        *((name, 1, {}) for name in OF_ONE),
        ("dropout", 1, {"dropout_prob": 0.5}),
        ("transpose2", 1, {"axis": [1, 0, 2, 3]}),
        ("flatten2", 1, {"axis": 1}),
        ("pool2d", 1, {**POOL, "pooling_type": "max"}),
        ("pool2d", 1, {**POOL, "pooling_type": "avg"}),
    ],
)
def test_operators_that_follow_their_inputs_keep_half_precision(
    kind: str, inputs: int, settings: dict[str, Any]
) -> None:
    assert kind in AutoMixedPrecisionLists().gray_list
    definition = find_op(kind)
    assert definition is not None
    given = [torch.rand(2, 3, 4, 4).bfloat16() + 1 for _ in range(inputs)]
    assert definition.function(*given, **settings).dtype is torch.bfloat16


def test_statistics_of_batch_norm_stay_float32() -> None:
    x = fluid.data("x", [None, 2, 4, 4])
    normal = L.batch_norm(L.conv2d(x, 3, 3), act="relu")
    decorate(fluid.optimizer.SGD(0.1)).minimize(L.mean(normal))
    exe = started()
    exe.run(feed={"x": np.random.default_rng(1).normal(size=(4, 2, 4, 4)).astype("float32")})
    assert normal.dtype == "float16"
    for end in ("w_0", "b_0", "w_1", "w_2"):
        held_as = fluid.global_scope().find_var(f"batch_norm_0.{end}").value().dtype
        assert held_as is torch.float32


def test_what_a_loop_reads_or_changes_stays_float32() -> None:
    x = fluid.data("x", [4, 4])
    state = L.fc(x, 4, param_attr=fluid.ParamAttr("w"))
    count, end = L.fill_constant([1], "int64", 0), L.fill_constant([1], "int64", 3)
    going = L.less_than(count, end)
    loop = L.While(going)
    with loop.block():
        L.assign(L.fc(state, 4, bias_attr=False, param_attr=fluid.ParamAttr("inner")), state)
        L.increment(count)
        L.less_than(count, end, cond=going)
    loss = L.mean(L.fc(state, 1))
    decorate(fluid.optimizer.SGD(0.1)).minimize(loss)
    assert state.dtype == "float32"
    assert any(op.type == "cast" for op in fluid.default_main_program().global_block().ops)
    exe = started()
    before = held("inner")
    exe.run(feed={"x": np.ones((4, 4), "float32")}, fetch_list=[loss])
    assert not np.array_equal(before, held("inner"))


def test_a_copy_is_made_again_when_its_source_was_written_again() -> None:
    x = fluid.data("x", [None, 3])
    kept = L.create_global_var([3, 2], 1.0, "float32", persistable=True, name="kept")
    first = L.matmul(x, kept)
    L.assign(L.scale(kept, 2.0), kept)
    second = L.matmul(x, kept)
    fp16_utils.rewrite_program(fluid.default_main_program(), AutoMixedPrecisionLists())
    values = started().run(feed=feed_of(1.0), fetch_list=[first, second])
    np.testing.assert_allclose(values[1], values[0] * 2)


def test_replicas_share_one_scale_and_skip_together() -> None:
    optimizer = decorate(fluid.optimizer.SGD(0.5), None, 8.0, decr_every_n_nan_or_inf=1)
    loss = one_weight(optimizer)
    exe = started()
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        loss_name=loss.name, places=fluid.cpu_places(2)
    )
    bad = np.ones((4, 3), "float32")
    bad[3] = np.inf  # in the part of the second replica
    for fed, wanted in ((np.ones((4, 3), "float32"), 0.5), (bad, 0.5), (bad, 0.5)):
        (scale,) = exe.run(compiled, {"x": fed}, [optimizer.get_loss_scaling()])
        np.testing.assert_allclose(held("w"), np.full((3, 1), wanted), atol=1e-6)
    np.testing.assert_allclose(scale, [6.4, 6.4])


def test_the_scale_is_saved_with_the_parameters(tmp_path: Path) -> None:
    optimizer = decorate(fluid.optimizer.SGD(0.5), None, 8.0, incr_every_n_steps=1)
    one_weight(optimizer)
    exe = started()
    for _ in range(3):
        exe.run(feed=feed_of(1.0))
    fluid.io.save_persistables(exe, str(tmp_path))
    with fluid.scope_guard(fluid.Scope()):
        exe.run(fluid.default_startup_program())
        fluid.io.load_persistables(exe, str(tmp_path))
        assert [held("loss_scaling_0")[0], held("num_good_steps_0")[0]] == [16.0, 1]


def test_lists_refuse_what_is_in_both() -> None:
    with pytest.raises(ValueError, match="but both contain mul"):
        AutoMixedPrecisionLists({"mul"}, {"mul", "exp"})
