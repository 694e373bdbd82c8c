"""Layers with random numbers: what they draw, and what they compute from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid

L = fluid.layers


def run(*fetches: Any, feed: dict[str, Any] | None = None) -> list[Any]:
    exe = fluid.Executor()
    if fluid.default_startup_program().global_block().ops:
        exe.run(fluid.default_startup_program())
    return exe.run(feed=feed or {}, fetch_list=list(fetches))


def value(name: str) -> Any:
    return np.array(fluid.global_scope().find_var(name).get_tensor())


CHANCES = {
    "uniform": np.full(6, 1 / 6),
    "log_uniform": np.log((np.arange(6) + 2) / (np.arange(6) + 1)) / np.log(6),
    "custom_dist": np.array([0.1, 0.2, 0.3, 0.1, 0.1, 0.2]),
}
"""The probabilities of six classes, as in 1.8.5."""


@pytest.mark.parametrize("sampler", CHANCES)
def test_nce_is_the_loss_of_the_classes_it_drew(sampler: str) -> None:
    x, y = fluid.data("x", [None, 3]), fluid.data("y", [None, 1], "int64")
    dist = CHANCES[sampler].tolist() if sampler == "custom_dist" else None
    cost = L.nce(x, y, 6, num_neg_samples=4, sampler=sampler, custom_dist=dist)
    feed = {
        "x": np.random.default_rng(0).random((5, 3), np.float32),
        "y": np.array([[0], [1], [5], [3], [2]]),
    }
    found, labels = run(cost, "nce_0.tmp_2", feed=feed)
    weight, bias = value("nce_0.w_0"), value("nce_0.b_0")
    assert (labels[:, :1] == feed["y"]).all()
    odds = 1 / (1 + np.exp(-(weight[labels] * feed["x"][:, None]).sum(-1) - bias[labels][..., 0]))
    noise = CHANCES[sampler][labels] * 4
    wanted = -np.log(odds[:, 0] / (odds[:, 0] + noise[:, 0]))
    wanted -= np.log(noise[:, 1:] / (odds[:, 1:] + noise[:, 1:])).sum(1)
    np.testing.assert_allclose(found[:, 0], wanted / 5, rtol=1e-5)


def test_nce_trains() -> None:
    x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1], "int64")
    loss = L.mean(L.nce(x, y, 4, num_neg_samples=3, seed=5))
    fluid.optimizer.Adagrad(0.5).minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    feed = {"x": np.eye(4, dtype="float32"), "y": np.arange(4)[:, None]}
    losses = [float(exe.run(feed=feed, fetch_list=[loss])[0][0]) for _ in range(40)]
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:5])


def test_sampled_softmax_of_all_classes_is_near_the_whole_one() -> None:
    x, y = fluid.data("x", [None, 5]), fluid.data("y", [None, 1], "int64")
    cost = L.sampled_softmax_with_cross_entropy(x, y, 5, seed=1)
    feed = {
        "x": np.random.default_rng(1).random((3, 5), np.float32),
        "y": np.array([[0], [4], [2]]),
    }
    (found,) = run(cost, feed=feed)
    assert found.shape == (3, 1)
    assert np.isfinite(found).all()
    assert (found > 0).all()


def test_drawn_values_are_in_their_ranges_and_follow_the_seed() -> None:
    whole = L.randint(2, 5, shape=[100], seed=3)
    order = L.randperm(10)
    wide = L.randn([200])
    (numbers, places, normal), (again, _, _) = (run(whole, order, wide) for _ in range(2))
    assert set(numbers) == {2, 3, 4}
    assert sorted(places) == list(range(10))
    assert abs(normal.mean()) < 0.4
    assert (numbers == again).all()


def test_sizes_of_random_values_follow_the_batch() -> None:
    x = fluid.data("x", [None, 3])
    spread = L.uniform_random_batch_size_like(x, [-1, 7], min=0.5, max=1.0)
    normal = L.gaussian_random_batch_size_like(x, [2, -1], output_dim_idx=1)
    found = run(spread, normal, feed={"x": np.ones((4, 3), "float32")})
    assert found[0].shape == (4, 7)
    assert found[0].min() >= 0.5
    assert found[1].shape == (2, 4)


def test_sampling_id_draws_by_probability() -> None:
    x = fluid.data("x", [None, 3])
    rows = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], "float32")
    assert run(L.sampling_id(x), feed={"x": rows})[0].tolist() == [1, 2, 0]


def test_random_crop_takes_a_part_of_each_example() -> None:
    x = fluid.data("x", [None, 5, 6])
    array = np.arange(60, dtype="float32").reshape(2, 5, 6)
    (found,) = run(L.random_crop(x, [2, 3]), feed={"x": array})
    for part, whole in zip(found, array, strict=True):
        row, column = divmod(int(part[0, 0] - whole[0, 0]), 6)
        assert (part == whole[row : row + 2, column : column + 3]).all()


def test_shuffle_batch_moves_whole_rows_and_their_gradients() -> None:
    x = fluid.data("x", [None, 2])
    x.stop_gradient = False
    out = fluid.contrib.layers.shuffle_batch(x, seed=4)
    weights = fluid.data("w", [None, 2])
    (gradient,) = fluid.gradients(L.reduce_sum(out * weights), x)
    array = np.arange(20, dtype="float32").reshape(10, 2)
    found, back = run(out, gradient, feed={"x": array, "w": array})
    order = (found[:, 0] / 2).astype(int)
    assert sorted(order) == list(range(10))
    assert (back[order] == array).all()


def test_tdm_sampler_draws_other_nodes_of_each_layer() -> None:
    def tree(rows: list[list[int]]) -> Any:
        array = np.array(rows, "int32")
        return fluid.ParamAttr(initializer=fluid.initializer.NumpyArray(array))

    x = fluid.data("x", [None, 1], "int32")
    samples, labels, masks = fluid.contrib.layers.tdm_sampler(
        x,
        [1, 2],
        [2, 4],
        4,
        tree([[1, 3], [1, 4], [2, 5], [2, 0]]),
        tree([[1], [2], [3], [4], [5], [6]]),
    )
    found = run(*samples, *labels, *masks, feed={"x": np.array([[0], [3]], "int32")})
    assert found[0][:, :, 0].tolist() == [[1, 2], [2, 1]]
    assert found[1].shape == (2, 3, 1)
    assert found[1][0, 0, 0] == 3
    assert set(found[1][0, 1:, 0]) < {4, 5, 6}
    assert found[1][1].ravel().tolist() == [0, 0, 0]  # the way ended above
    assert found[3][0].ravel().tolist() == [1, 0, 0]
    assert [mask.ravel().tolist() for mask in found[5]] == [[1, 1, 1], [0, 0, 0]]


def test_spectral_norm_divides_by_the_largest_singular_value() -> None:
    weight = fluid.data("w", [4, 3])
    made = L.spectral_norm(weight, power_iters=30)
    array = np.random.default_rng(3).random((4, 3), np.float32)
    (found,) = run(made, feed={"w": array})
    np.testing.assert_allclose(found, array / np.linalg.svd(array)[1][0], rtol=1e-4)
