"""Gradients of several losses, clipped in groups, and of logits far apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.errors import ConfigError

L = fluid.layers
clip = fluid.clip


def weights(**values: list[float]) -> list[Any]:
    return [
        L.create_parameter(
            [len(first)],
            "float32",
            name=name,
            default_initializer=fluid.initializer.NumpyArrayInitializer(np.array(first, "float32")),
        )
        for name, first in values.items()
    ]


def run(feed: dict[str, Any] | None = None, fetch: Any = ()) -> list[np.ndarray]:
    exe = fluid.Executor()
    if fluid.default_startup_program().global_block().ops:
        exe.run(fluid.default_startup_program())
    return exe.run(feed=feed, fetch_list=list(fetch))


def test_each_loss_has_gradients_of_its_own() -> None:
    (w,) = weights(w=[1.0, 2.0])
    (first,) = fluid.gradients(L.reduce_sum(w), w)
    (_, pairs) = fluid.optimizer.SGD(0.1).minimize(L.reduce_sum(w * 3.0))
    assert (first.name, pairs[0][1].name) == ("w@GRAD", "w@GRAD_0")
    one, three = run(fetch=[first, pairs[0][1]])
    np.testing.assert_allclose((one, three), ([1.0, 1.0], [3.0, 3.0]))


def test_second_optimizer_has_the_next_learning_rate() -> None:
    (w,) = weights(w=[1.0])
    with fluid.unique_name.guard():
        fluid.optimizer.SGD(0.1).minimize(L.reduce_sum(w))
        fluid.optimizer.SGD(0.2).minimize(L.reduce_sum(w))
    names = {variable.name for variable in fluid.default_main_program().list_vars()}
    assert {"learning_rate_0", "learning_rate_1"} <= names


def test_clip_of_the_optimizer_is_in_the_place_of_others() -> None:
    (w,) = weights(w=[0.0, 0.0])
    clip.set_gradient_clip(clip.GradientClipByValue(0.25))
    clipping = clip.GradientClipByValue(0.5)
    fluid.optimizer.SGD(1.0, grad_clip=clipping).minimize(L.reduce_sum(w))
    run()
    held = np.array(fluid.global_scope().find_var("w").get_tensor())
    np.testing.assert_allclose(held, [-0.5, -0.5])


def test_global_norms_of_one_group_are_one() -> None:
    a, b = weights(a=[0.0], b=[0.0])
    for parameter in (a, b):
        clip.set_gradient_clip(clip.GradientClipByGlobalNorm(1.0), [parameter])
    fluid.optimizer.SGD(1.0).minimize(L.reduce_sum(a * 3.0) + L.reduce_sum(b * 4.0))
    run()
    held = [float(np.array(fluid.global_scope().find_var(x).get_tensor())[0]) for x in "ab"]
    np.testing.assert_allclose(held, [-0.6, -0.8], atol=1e-6)


def test_global_norms_of_one_group_must_be_equal() -> None:
    a, b = weights(a=[0.0], b=[0.0])
    clip.set_gradient_clip(clip.GradientClipByGlobalNorm(1.0), [a])
    clip.set_gradient_clip(clip.GradientClipByGlobalNorm(2.0), [b])
    with pytest.raises(ConfigError, match=r"'b' has clip_norm 2.0, but 'a' .* 1.0"):
        fluid.optimizer.SGD(1.0).minimize(L.reduce_sum(a + b))


def test_softmax_cuts_logits_as_the_original() -> None:
    logits = fluid.data("logits", [None, 3])
    label = fluid.data("label", [None, 1], "int64")
    chances = L.softmax(logits)
    losses, beside = L.softmax_with_cross_entropy(logits, label, return_softmax=True)
    (slope,) = fluid.gradients(L.reduce_sum(L.log(chances)), logits)
    (loss_slope,) = fluid.gradients(L.reduce_sum(losses), logits)
    feed = {"logits": np.array([[0.0, -70.0, -63.0]], "float32"), "label": np.array([[1]])}
    found = run(feed, [chances, beside, losses, slope, loss_slope])
    cut = [1.0, 1.6038109e-28, 4.3596101e-28]
    for index in (0, 1):
        np.testing.assert_allclose(found[index], [cut], rtol=1e-5)
    np.testing.assert_allclose(found[2], [[64.0]])
    np.testing.assert_allclose(found[3], [[-2.0, 1.0, 1.0]], atol=1e-6)
    np.testing.assert_allclose(found[4], [[1.0, -1.0, 0.0]], atol=1e-6)


def test_softmax_of_nothing_and_of_a_mask() -> None:
    logits = fluid.data("logits", [None, 2])
    chances = L.softmax(logits)
    assert run({"logits": np.zeros((0, 2), "float32")}, [chances])[0].shape == (0, 2)
    (found,) = run({"logits": np.array([[0.0, -np.inf]], "float32")}, [chances])
    np.testing.assert_allclose(found, [[1.0, 1.6038109e-28]], rtol=1e-5)
