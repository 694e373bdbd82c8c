"""Runs: feeds, fetches, scopes, training compared with plain torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from sparsefleet import fluid

L = fluid.layers


def value(name: str) -> Any:
    return np.array(fluid.global_scope().find_var(name).get_tensor())


def test_results_come_in_the_order_of_the_fetches() -> None:
    x = fluid.data("x", [None, 2])
    double, square = x * 2.0, L.square(x)
    feed = {"x": np.array([[3.0, 4.0]], "float32")}
    exe = fluid.Executor(fluid.CPUPlace())
    found = exe.run(feed=feed, fetch_list=[square, "x", double])
    assert [array.tolist() for array in found] == [[[9, 16]], [[3, 4]], [[6, 8]]]
    assert exe.run(feed=[feed], fetch_list=square)[0].tolist() == [[9, 16]]
    (tensor,) = exe.run(feed=feed, fetch_list=[double], return_numpy=False)
    assert isinstance(tensor, fluid.LoDTensor)


def test_a_closed_executor_does_not_run() -> None:
    exe = fluid.Executor()
    exe.close()
    with pytest.raises(RuntimeError, match="closed"):
        exe.run(fluid.default_startup_program())


def test_empty_programs_and_unknown_feeds_warn() -> None:
    exe = fluid.Executor()
    with pytest.warns(UserWarning, match="no operators"):
        exe.run(fluid.Program())
    x = fluid.data("x", [None, 2]) * 2.0
    with pytest.warns(UserWarning, match="'lost' is fed"):
        exe.run(feed={"x": np.ones((1, 2), "float32"), "lost": np.ones(1)}, fetch_list=[x])


def test_values_stay_in_the_scope_of_the_run() -> None:
    out = L.fc(fluid.data("x", [None, 2]), 1, param_attr="w", bias_attr=False)
    exe, feed = fluid.Executor(), {"x": np.ones((1, 2), "float32")}
    scopes = [fluid.Scope(), fluid.Scope()]
    for number, scope in enumerate(scopes):
        exe.run(fluid.default_startup_program(), scope=scope)
        tensor = scope.find_var("w").get_tensor()
        tensor.set(np.full((2, 1), number, "float32"), fluid.CPUPlace())
    assert [exe.run(feed=feed, fetch_list=[out], scope=s)[0].item() for s in scopes] == [0.0, 2.0]
    assert fluid.global_scope().find_var("w") is None


def test_a_variable_that_nobody_has_given_a_value_is_fetched_as_none() -> None:
    L.create_parameter([2], "float32", name="w")
    (fetched,) = fluid.Executor().run(fetch_list=["w"])
    assert fetched is None


def test_sequences_are_fed_and_fetched() -> None:
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    rows = L.embedding(ids, [10, 2], param_attr=fluid.initializer.Constant(1.0))
    pooled = L.sequence_pool(rows, "sum")
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    feed = {"ids": fluid.create_lod_tensor([[1, 2], [3], []], [[2, 1, 0]])}
    assert exe.run(feed=feed, fetch_list=[pooled])[0].tolist() == [[2, 2], [1, 1], [0, 0]]
    with pytest.raises(RuntimeError, match="return_numpy=False"):
        exe.run(feed=feed, fetch_list=[rows])
    (tensor,) = exe.run(feed=feed, fetch_list=[rows], return_numpy=False)
    assert tensor.lod() == [[0, 2, 3, 3]]


def test_two_levels_of_sequences_are_pooled_one_by_one() -> None:
    x = fluid.data("x", [None, 1], lod_level=2)
    inner = L.sequence_pool(x, "sum")
    outer = L.sequence_pool(inner, "average")
    feed = {"x": fluid.create_lod_tensor(np.ones((7, 1), "float32"), [[2, 1], [2, 2, 3]])}
    (found,) = fluid.Executor().run(feed=feed, fetch_list=[outer])
    assert (inner.lod_level, found.tolist()) == (1, [[2], [3]])


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_training_equals_torch(kind: str) -> None:
    """Within 1e-6 over five steps, from the same first values."""
    x, y = fluid.data("x", [None, 6]), fluid.data("y", [None, 1], "int64")
    hidden = L.fc(x, 8, act="tanh")
    loss = L.mean(L.cross_entropy(L.fc(hidden, 3, act="softmax"), y))
    # A small epsilon: Fluid adds it before the correction of the mean square, torch after.
    settings = {"epsilon": 1e-12} if kind == "Adam" else {}
    getattr(fluid.optimizer, kind)(0.05, **settings).minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    with torch.no_grad():
        for module, name in ((model[0], "fc_0"), (model[2], "fc_1")):
            module.weight.copy_(torch.from_numpy(value(f"{name}.w_0").T))
            module.bias.copy_(torch.from_numpy(value(f"{name}.b_0")))
    settings = {"eps": 1e-12} if kind == "Adam" else {}
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.05, **settings)
    generator = np.random.default_rng(3)
    for _ in range(5):
        batch = generator.normal(size=(16, 6)).astype("float32")
        labels = generator.integers(0, 3, (16, 1))
        (found,) = exe.run(feed={"x": batch, "y": labels}, fetch_list=[loss])
        expected = functional.cross_entropy(
            model(torch.from_numpy(batch)), torch.from_numpy(labels[:, 0])
        )
        assert found.item() == pytest.approx(float(expected.detach()), abs=1e-5)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
    np.testing.assert_allclose(value("fc_0.w_0").T, model[0].weight.detach().numpy(), atol=1e-5)


def test_sparse_rows_train_as_dense_ones_do() -> None:
    """Shared table, repeated ids and padding; equal to 1e-6 after ten steps of SGD."""
    results = []
    first = np.random.default_rng(1).normal(size=(20, 4)).astype("float32")
    for is_sparse in (False, True):
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
            ids = [L.data(f"C{i}", [1], dtype="int64", lod_level=1) for i in range(2)]
            label = L.data("label", [1])
            attr = fluid.ParamAttr(
                name="table", initializer=fluid.initializer.NumpyArrayInitializer(first)
            )
            rows = [
                L.sequence_pool(
                    L.embedding(x, [20, 4], is_sparse, padding_idx=0, param_attr=attr), "sum"
                )
                for x in ids
            ]
            weights = fluid.initializer.Constant(0.3)
            logit = L.fc(L.concat(rows, axis=1), 1, param_attr=weights)
            loss = L.mean(L.sigmoid_cross_entropy_with_logits(logit, label))
            fluid.optimizer.SGD(0.5).minimize(loss)
            exe = fluid.Executor()
            exe.run(startup)
            generator = np.random.default_rng(2)
            losses = []
            for _ in range(10):
                feed: dict[str, Any] = {
                    name: fluid.create_lod_tensor(generator.integers(0, 20, (6, 1)), [[1, 2, 3]])
                    for name in ("C0", "C1")
                }
                feed["label"] = generator.integers(0, 2, (3, 1)).astype("float32")
                losses.append(exe.run(main, feed, [loss])[0].item())
            results.append((losses, value("table")))
    np.testing.assert_allclose(results[1][0], results[0][0], atol=1e-6)
    np.testing.assert_allclose(results[1][1], results[0][1], atol=1e-6)
    assert not np.allclose(results[1][1], first)


def test_a_huge_table_holds_only_rows_that_were_seen() -> None:
    ids = L.data("ids", [1], dtype="int64")
    attr = fluid.ParamAttr(name="huge", initializer=fluid.initializer.Uniform(-0.1, 0.1))
    rows = L.embedding(ids, [10**12, 8], is_sparse=True, param_attr=attr)
    fluid.optimizer.Adagrad(0.1).minimize(L.mean(rows))
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    exe.run(feed={"ids": np.array([[5], [10**11], [5]])})
    table = fluid.global_scope().find_var("huge").get_tensor()
    assert table.shape() == [10**12, 8]
    assert sum(len(chunk.keys) for chunk in table.store.rows("huge")) == 2


def test_a_sparse_parameter_that_is_also_multiplied_is_one_tensor() -> None:
    ids = L.data("ids", [1], dtype="int64")
    rows = L.embedding(ids, [6, 3], is_sparse=True, param_attr="w")
    weight = fluid.default_main_program().global_block().var("w")
    loss = L.mean(L.matmul(rows, weight, transpose_y=True))
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    before = value("w")
    exe.run(feed={"ids": np.array([[1], [2]])})
    assert (value("w") != before).all()


def test_the_auc_layer_has_the_values_of_fluid() -> None:
    x, y = fluid.data("x", [None, 1]), fluid.data("y", [None, 1], "int64")
    total, batch, states = L.auc(x, y, slide_steps=2)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    steps = [
        ([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 0.75, 0.75),
        ([0.9, 0.1], [0, 1], 0.38889, 0.38889),
        ([0.9, 0.1], [1, 0], 0.59375, 0.5),
    ]
    for scores, labels, expected, expected_batch in steps:
        feed = {
            "x": np.array(scores, "float32")[:, None],
            "y": np.array(labels, "int64")[:, None],
        }
        found = exe.run(feed=feed, fetch_list=[total, batch])
        assert [array.dtype for array in found] == [np.float64] * 2
        np.testing.assert_allclose(np.concatenate(found), [expected, expected_batch], atol=1e-5)
    assert [variable.persistable for variable in states] == [True] * 4
    for variable in states:
        tensor = fluid.global_scope().find_var(variable.name).get_tensor()
        tensor.set(np.zeros(tensor.shape(), "int64"), fluid.CPUPlace())
    only_one = {"x": np.array([[0.5]], "float32"), "y": np.array([[1]])}
    assert exe.run(feed=only_one, fetch_list=[total])[0].tolist() == [0.0]
    with pytest.raises(ValueError, match="probabilities"):
        exe.run(feed={"x": np.array([[1.5]], "float32"), "y": np.array([[1]])})


def test_counts_continue_also_when_nothing_is_fetched() -> None:
    x, y = fluid.data("x", [None, 1]), fluid.data("y", [None, 1], "int64")
    _, _, states = L.auc(x, y)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    feed = {"x": np.array([[0.3], [0.6]], "float32"), "y": np.array([[1], [0]])}
    for _ in range(3):
        exe.run(feed=feed)
    assert [int(value(variable.name).sum()) for variable in states[2:]] == [3, 3]


def test_accuracy_counts_labels_among_the_best() -> None:
    x, y = fluid.data("x", [None, 3]), fluid.data("y", [None, 1], "int64")
    best, two = L.accuracy(x, y), L.accuracy(x, y, k=2)
    feed = {
        "x": np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]], "float32"),
        "y": np.array([[2], [0]]),
    }
    found = fluid.Executor().run(feed=feed, fetch_list=[best, two])
    assert [array.tolist() for array in found] == [[0.5], [1.0]]


def test_batch_norm_keeps_means_as_fluid_does() -> None:
    x = fluid.data("x", [None, 2])
    L.batch_norm(x, moving_mean_name="mean", moving_variance_name="variance")
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": np.array([[1.0, 2.0], [3.0, 6.0]], "float32")})
    np.testing.assert_allclose(value("mean"), [0.2, 0.4], rtol=1e-6)
    np.testing.assert_allclose(value("variance"), [1.0, 1.3], rtol=1e-6)


def test_a_seed_makes_programs_start_alike() -> None:
    for program in (fluid.default_main_program(), fluid.default_startup_program()):
        program.random_seed = 11
    x = fluid.data("x", [None, 50])
    out = L.dropout(L.fc(x, 5), 0.5)
    feed, found = {"x": np.ones((4, 50), "float32")}, []
    for _ in range(2):
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        found.append([exe.run(feed=feed, fetch_list=[out])[0] for _ in range(2)])
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0][0] != found[0][1]).any()


def test_a_started_loader_feeds_runs_until_its_end() -> None:
    x = fluid.data("x", [None, 1], "int64")
    loader = fluid.io.DataLoader.from_generator([x], capacity=2, iterable=False)
    loader.set_sample_generator(lambda: ((n,) for n in range(5)), batch_size=2, drop_last=False)
    total = L.reduce_sum(x)
    exe = fluid.Executor()
    for _ in range(2):
        loader.start()
        assert [exe.run(fetch_list=[total])[0].item() for _ in range(3)] == [1, 5, 4]
        with pytest.raises(fluid.core.EOFException):
            exe.run(fetch_list=[total])
        loader.reset()
