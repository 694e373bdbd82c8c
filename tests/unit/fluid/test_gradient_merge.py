"""Updates by the gradients of several batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.optimizer import GradientMergeOptimizer

L = fluid.layers


def held(name: str) -> Any:
    return np.array(fluid.global_scope().find_var(name).get_tensor())


def train(wrap: Any, batches: list[dict[str, Any]], is_sparse: bool = True) -> dict[str, Any]:
    """Return the persistent values after a run per batch; `wrap` creates the optimizer."""
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 4
    with (
        fluid.program_guard(main, startup),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
    ):
        x, ids = fluid.data("x", [None, 3]), fluid.data("ids", [None, 1], "int64")
        rows = L.embedding(ids, [7, 3], is_sparse=is_sparse, param_attr=fluid.ParamAttr("rows"))
        hidden = L.fc(L.concat([x, rows], 1), 4, act="tanh", param_attr=fluid.ParamAttr("w"))
        loss = L.mean(L.square(L.fc(hidden, 1, param_attr=fluid.ParamAttr("v"))))
        clip = fluid.clip.GradientClipByGlobalNorm(0.5)
        wrap(fluid.optimizer.Adam(0.1, grad_clip=clip)).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for feed in batches:
            exe.run(main, feed, [])
        return {name: held(name) for name in ("rows", "w", "v")}


def drawn(count: int, size: int) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    return [
        {"x": draw.normal(size=(size, 3)).astype("float32"), "ids": draw.integers(0, 7, (size, 1))}
        for _ in range(count)
    ]


def joined(batches: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    groups = [batches[at : at + count] for at in range(0, len(batches), count)]
    return [{k: np.concatenate([one[k] for one in group]) for k in group[0]} for group in groups]


def test_merged_batches_train_like_one_of_their_size() -> None:
    batches = drawn(6, 4)
    merged = train(lambda inner: GradientMergeOptimizer(inner, k_steps=3), batches)
    whole = train(lambda inner: inner, joined(batches, 3), is_sparse=False)
    for name in ("rows", "w", "v"):
        np.testing.assert_allclose(merged[name], whole[name], rtol=1e-5, atol=1e-6)


def test_nothing_changes_between_the_updates() -> None:
    batches = drawn(3, 4)
    before = train(lambda inner: GradientMergeOptimizer(inner, k_steps=3), [])
    after = train(lambda inner: GradientMergeOptimizer(inner, k_steps=3), batches[:2])
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])


def weight_after(optimizer: Any, numbers: list[float]) -> Any:
    """Return w after training mean(x * w) from w = 0."""
    x = fluid.data("x", [None, 1])
    first = fluid.initializer.Constant(0.0)
    attr = fluid.ParamAttr("w", initializer=first)
    optimizer.minimize(L.mean(L.fc(x, 1, param_attr=attr, bias_attr=False)))
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    for number in numbers:
        exe.run(feed={"x": np.full((2, 1), number, "float32")})
    return held("w").item()


def test_gradients_can_be_summed_instead() -> None:
    merge = GradientMergeOptimizer(fluid.optimizer.SGD(1.0), k_steps=2, avg=False)
    assert weight_after(merge, [1.0, 2.0, 4.0]) == -3.0


@pytest.mark.parametrize("is_outside", [True, False])
def test_a_step_that_overflows_does_not_count(is_outside: bool) -> None:
    decorate = fluid.contrib.mixed_precision.decorate
    optimizer: Any = fluid.optimizer.SGD(1.0)
    if is_outside:
        optimizer = decorate(GradientMergeOptimizer(optimizer, k_steps=2))
        assert weight_after(optimizer, [1.0, np.inf, 3.0]) == -2.0
    else:  # the sum over two batches is checked
        optimizer = GradientMergeOptimizer(decorate(optimizer), k_steps=2)
        assert weight_after(optimizer, [1.0, np.inf, 3.0, 5.0]) == -4.0


def test_replicas_merge_together() -> None:
    x = fluid.data("x", [None, 1])
    attr = fluid.ParamAttr("w", initializer=fluid.initializer.Constant(0.0))
    loss = L.mean(L.fc(x, 1, param_attr=attr, bias_attr=False))
    GradientMergeOptimizer(fluid.optimizer.SGD(1.0), k_steps=2).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        loss_name=loss.name, places=fluid.cpu_places(2)
    )
    for number, wanted in ((1.0, 0.0), (3.0, -2.0), (5.0, -2.0)):
        exe.run(compiled, {"x": np.full((4, 1), number, "float32")}, [])
        assert held("w").item() == wanted


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="k_steps must be an int >= 1, got 0"):
        GradientMergeOptimizer(fluid.optimizer.SGD(1.0), k_steps=0)
    with pytest.raises(TypeError, match="takes an optimizer, got 'sgd'"):
        GradientMergeOptimizer("sgd")  # type: ignore[arg-type]
