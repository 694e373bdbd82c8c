"""Programs on a simulated GPU: all their tensors are on it, and values equal the CPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.simulated_gpu import GPU, simulated_gpu

from sparsefleet import fluid
from sparsefleet.fluid.contrib.mixed_precision import decorate

L = fluid.layers
Feed = dict[str, Any]


def _images() -> fluid.Variable:
    return fluid.data("x", [None, 1, 6, 6])


def _loss_of(x: fluid.Variable) -> fluid.Variable:
    label = fluid.data("label", [None, 1], dtype="int64")
    return L.mean(L.softmax_with_cross_entropy(L.fc(x, 3), label))


def mlp_with_dropout_and_schedule() -> fluid.Variable:
    hidden = L.dropout(L.fc(_images(), 8, act="relu"), 0.3)
    loss = _loss_of(hidden)
    fluid.optimizer.Adam(L.piecewise_decay([1, 2], [0.1, 0.05, 0.01])).minimize(loss)
    return loss


def convolution_and_batch_norm() -> fluid.Variable:
    image = L.batch_norm(L.conv2d(_images(), 4, 3, act="relu"), act="relu")
    loss = _loss_of(L.pool2d(image, 2, "max", 2))
    rate = L.linear_lr_warmup(L.cosine_decay(0.1, 3, 4), 2, 0.01, 0.1)
    fluid.optimizer.Momentum(rate, 0.9, regularization=fluid.regularizer.L2Decay(1e-4)).minimize(
        loss
    )
    return loss


def embedding_and_auc() -> fluid.Variable:
    words = fluid.data("words", [None, 4], dtype="int64")
    _images()
    loss = _loss_of(L.reduce_sum(fluid.embedding(words, [10, 5]), 1))
    predicted = L.softmax(L.fc(L.reduce_sum(fluid.embedding(words, [10, 5]), 1), 2))
    L.auc(predicted, L.cast(fluid.default_main_program().global_block().var("label") > 0, "int64"))
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    return loss


def table_of_rows() -> fluid.Variable:
    words = fluid.data("words", [None, 4], dtype="int64")
    rows = fluid.embedding(words, [10, 5], is_sparse=True)
    loss = _loss_of(L.reduce_sum(rows, 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return loss


def sequences() -> fluid.Variable:
    ids = fluid.data("ids", [None, 1], dtype="int64", lod_level=1)
    rows = L.embedding(ids, [10, 5])
    pooled = [L.sequence_pool(rows, kind) for kind in ("sum", "average", "max", "last")]
    softened = L.sequence_pool(L.sequence_softmax(L.fc(rows, 1)), "sum")
    loss = _loss_of(L.concat([*pooled, softened], 1))
    fluid.optimizer.RMSProp(0.01).minimize(loss)
    return loss


def mixed_precision() -> fluid.Variable:
    loss = _loss_of(L.fc(_images(), 8, act="relu"))
    decorate(fluid.optimizer.Adam(0.01), use_dynamic_loss_scaling=True).minimize(loss)
    return loss


def clipped_with_recompute() -> fluid.Variable:
    first = L.dropout(L.fc(_images(), 8, act="tanh"), 0.5)
    second = L.dropout(L.fc(first, 8, act="tanh") + L.fill_constant([8], "float32", 0.5), 0.5)
    loss = _loss_of(L.fc(second, 8))
    fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(0.1))
    chosen = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.Adamax(0.01))
    chosen._set_checkpoints([first, second])
    chosen.minimize(loss)
    return loss


def loop_and_branch() -> fluid.Variable:
    total, step = L.fill_constant([1], "float32", 0.0), L.fill_constant([1], "int64", 0)
    three = L.fill_constant([1], "int64", 3)
    step, total = L.while_loop(
        lambda i, _: L.less_than(i, three), lambda i, t: [i + 1, t + 1.0], [step, total]
    )
    more = L.cond(total > 2.0, lambda: total * 2.0, lambda: total)
    loss = _loss_of(L.fc(_images(), 4) + more)
    fluid.optimizer.Ftrl(0.1).minimize(loss)
    return loss


PROGRAMS = (
    mlp_with_dropout_and_schedule,
    convolution_and_batch_norm,
    embedding_and_auc,
    table_of_rows,
    sequences,
    mixed_precision,
    clipped_with_recompute,
    loop_and_branch,
)


def _feeds() -> Iterator[Feed]:
    draw = np.random.default_rng(1)
    for _ in range(3):
        yield {
            "x": draw.random((6, 1, 6, 6), dtype=np.float32),
            "label": draw.integers(0, 3, (6, 1)),
            "words": draw.integers(0, 10, (6, 4)),
            "ids": fluid.create_lod_tensor(draw.integers(0, 10, (14, 1)), [[2, 1, 4, 1, 3, 3]]),
        }


def _trained(build: Callable[[], fluid.Variable], *, on_gpu: bool) -> Any:
    """Return the losses, and the values and devices of persistent variables after three steps."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with (
        simulated_gpu() if on_gpu else nullcontext(),
        fluid.unique_name.guard(),
        fluid.program_guard(main, startup),
        fluid.scope_guard(fluid.Scope()),
    ):
        loss = build()
        exe = fluid.Executor(fluid.CUDAPlace(0) if on_gpu else fluid.CPUPlace())
        exe.run(startup)
        known = main.global_block().vars
        losses = [
            exe.run(feed={k: v for k, v in feed.items() if k in known}, fetch_list=[loss])
            for feed in _feeds()
        ]
        kept = {
            found.name: fluid.global_scope().find_var(found.name).get_tensor()
            for found in main.list_vars()
            if found.persistable
        }
        devices = {held.tensor.device for held in kept.values() if hasattr(held, "tensor")}
        return losses, {name: np.array(held) for name, held in kept.items()}, devices


@pytest.mark.parametrize("build", PROGRAMS)
def test_a_program_on_a_gpu_has_all_its_tensors_there_and_learns_the_same(build: Any) -> None:
    losses, kept, _ = _trained(build, on_gpu=False)
    found_losses, found, devices = _trained(build, on_gpu=True)
    assert devices == {GPU}
    np.testing.assert_allclose(found_losses, losses, rtol=1e-2 if "mixed" in str(build) else 0)
    if build is not mixed_precision:  # a GPU computes with float16, the CPU with bfloat16
        for name, value in kept.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def _weighted_sum() -> tuple[fluid.Variable, Feed]:
    x = fluid.data("x", [None, 2])
    return L.fc(x, 1, param_attr="w", bias_attr=False), {"x": np.ones((3, 2), "float32")}


def _weight() -> Any:
    return fluid.global_scope().find_var("w").get_tensor()


def test_kept_values_follow_the_executor_that_runs_them(tmp_path: Path) -> None:
    total, feed = _weighted_sum()
    on_cpu = fluid.Executor(fluid.CPUPlace())
    on_cpu.run(fluid.default_startup_program())
    (wanted,) = on_cpu.run(feed=feed, fetch_list=[total])
    with simulated_gpu():
        on_gpu, back = fluid.Executor(fluid.CUDAPlace(0)), fluid.Executor(fluid.CPUPlace())
        (found,) = on_gpu.run(feed=feed, fetch_list=[total])
        assert _weight().tensor.device == GPU
        fluid.io.save_params(on_gpu, str(tmp_path))
        _weight().set(np.zeros((2, 1), "float32"), fluid.CPUPlace())
        fluid.io.load_params(on_gpu, str(tmp_path))
        (loaded,) = on_gpu.run(feed=feed, fetch_list=[total], return_numpy=False)
        (again,) = back.run(feed=feed, fetch_list=[total])
        assert _weight().tensor.device == loaded.tensor.device == torch.device("cpu")
    for value in (found, np.array(loaded), again):
        np.testing.assert_array_equal(value, wanted)


def test_without_a_gpu_no_run_asks_where_tensors_are() -> None:
    total, feed = _weighted_sum()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    assert exe.device is None
    assert exe.lowered(fluid.default_main_program(), feed, {}, [total.name]).device is None
