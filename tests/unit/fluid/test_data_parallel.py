"""Programs on several places: they train as one that gets the whole batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.errors import ConfigError

L = fluid.layers
ReduceStrategy = fluid.BuildStrategy.ReduceStrategy
Scale = fluid.BuildStrategy.GradientScaleStrategy

OPTIMIZERS = {
    "sgd": lambda: fluid.optimizer.SGD(0.1),
    "momentum": lambda: fluid.optimizer.Momentum(0.1, 0.9),
    "adam": lambda: fluid.optimizer.Adam(0.1),
    "schedule": lambda: fluid.optimizer.SGD(L.exponential_decay(0.1, 2, 0.5)),
    "decay": lambda: fluid.optimizer.SGD(0.1, regularization=fluid.regularizer.L2Decay(0.1)),
    "clip": lambda: fluid.optimizer.SGD(
        0.1, grad_clip=fluid.clip.GradientClipByGlobalNorm(clip_norm=0.05)
    ),
}


class Network:
    """Ids and numbers to a mean loss; values are fixed."""

    def __init__(self, optimizer: Any = None, *, is_sparse: bool = True) -> None:
        self.ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
        self.x = fluid.data("x", [None, 3])
        table = fluid.ParamAttr(name="table", initializer=fluid.initializer.Constant(0.1))
        weight = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(0.2))
        rows = L.embedding(self.ids, [20, 2], is_sparse=is_sparse, param_attr=table)
        hidden = L.concat([L.sequence_pool(rows, "sum"), self.x], axis=1)
        self.score = L.fc(hidden, 1, param_attr=weight, act="tanh")
        self.loss = L.mean(L.square(self.score - 0.5))
        self.test = fluid.default_main_program().clone(for_test=True)
        if optimizer is not None:
            self.update = optimizer.minimize(self.loss)
        self.exe = fluid.Executor(fluid.CPUPlace())
        self.exe.run(fluid.default_startup_program())

    def compiled(self, places: int = 2, program: Any = None, **settings: Any) -> Any:
        made = fluid.CompiledProgram(program or fluid.default_main_program())
        return made.with_data_parallel(
            loss_name=None if program else self.loss.name,
            places=fluid.cpu_places(places),
            **settings,
        )

    def values(self) -> list[Any]:
        return [value(name) for name in ("table", "w", "fc_0.b_0")]


def value(name: str) -> Any:
    return np.array(fluid.global_scope().find_var(name).get_tensor())


def batch(size: int = 6, seed: int = 0) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 4, size).tolist()
    ids = generator.integers(0, 20, (sum(lengths), 1))
    x = generator.normal(size=(size, 3)).astype("float32")
    return {"ids": fluid.create_lod_tensor(ids, [lengths], fluid.CPUPlace()), "x": x}


def trained(optimizer: str, places: int, strategy: Any = None, **network: Any) -> list[Any]:
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
    ):
        found = Network(OPTIMIZERS[optimizer](), **network)
        program = fluid.default_main_program()
        if places:
            program = found.compiled(places, build_strategy=strategy)
        for step in range(3):
            found.exe.run(program, batch(seed=step), [found.loss])
        return found.values()


@pytest.mark.parametrize("reduce", list(ReduceStrategy))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_replicas_train_as_one_with_the_whole_batch(optimizer: str, reduce: Any) -> None:
    strategy = fluid.BuildStrategy()
    strategy.reduce_strategy = reduce
    alone = trained(optimizer, 0)
    for places in (2, 3):
        for found, wanted in zip(trained(optimizer, places, strategy), alone, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_table_and_a_plain_parameter_train_alike() -> None:
    for found, wanted in zip(trained("sgd", 2), trained("sgd", 2, is_sparse=False), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_values_of_places_are_put_one_behind_the_other_or_listed() -> None:
    network = Network(fluid.optimizer.SGD(0.0))
    compiled, feed = network.compiled(), batch(5)
    fetches = [network.loss, network.score, "w"]
    (loss, score, weight) = network.exe.run(compiled, feed, fetches)
    (alone,) = network.exe.run(network.test, feed, [network.score])
    np.testing.assert_allclose(score, alone, rtol=1e-6)
    np.testing.assert_allclose(loss[0], np.square(score[:3] - 0.5).mean(), rtol=1e-6)
    assert loss.shape == (2,)
    assert weight.shape == (10, 1)
    parts = network.exe.run(compiled, feed, fetches, return_merged=False)
    assert [[part.shape for part in parts_of_one] for parts_of_one in parts] == [
        [(1,), (1,)],
        [(3, 1), (2, 1)],
        [(5, 1), (5, 1)],
    ]


def test_sequences_are_split_and_merged_whole() -> None:
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    same = L.scale(ids, 1.0)
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        places=fluid.cpu_places(2)
    )
    fed = fluid.create_lod_tensor([[1, 2], [3], [4, 5, 6]], [[2, 1, 3]], fluid.CPUPlace())
    exe = fluid.Executor(fluid.CPUPlace())
    (merged,) = exe.run(compiled, {"ids": fed}, [same], return_numpy=False)
    assert merged.lod() == [[0, 2, 3, 6]]
    assert np.array(merged)[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    (parts,) = exe.run(compiled, {"ids": fed}, [same], return_numpy=False, return_merged=False)
    assert [part.lod() for part in parts] == [[[0, 2, 3]], [[0, 3]]]


def test_a_list_feeds_each_place_its_own() -> None:
    network = Network(fluid.optimizer.SGD(0.1))
    compiled = network.compiled()
    (score,) = network.exe.run(compiled, [batch(4), batch(1)], [network.score])
    assert score.shape == (5, 1)
    with pytest.raises(ValueError, match=r"list of 1 dicts for 2 places.*drop_last"):
        network.exe.run(compiled, [batch(4)], [network.score])
    with pytest.raises(ValueError, match="list of 3 dicts for 2 places"):
        network.exe.run(compiled, [batch(4)] * 3, [network.score])
    with pytest.raises(ValueError, match=r"replica 1's feed has \['x'\].*the same variables"):
        network.exe.run(compiled, [batch(4), {"x": batch(1)["x"]}], [network.score])
    tested = network.compiled(program=network.test)
    (score,) = network.exe.run(tested, [batch(4)], [network.score])
    assert score.shape == (4, 1)


def test_fewer_samples_than_places_are_an_error() -> None:
    network = Network(fluid.optimizer.SGD(0.1))
    with pytest.raises(ValueError, match=r"'ids': 2 samples for 3 replicas.*CPU_NUM"):
        network.exe.run(network.compiled(3), batch(2), [network.loss])
    with pytest.raises(TypeError, match="feed must be a dict"):
        network.exe.run(network.compiled(3), 7, [network.loss])


@pytest.mark.parametrize(("strategy", "factor"), [(Scale.CoeffNumDevice, 0.5), (Scale.One, 1.0)])
def test_the_gradient_of_the_loss_is_scaled_by_the_strategy(strategy: Any, factor: float) -> None:
    x = fluid.data("x", [None, 1])
    weight = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(1.0))
    loss = L.mean(L.fc(x, 1, param_attr=weight, bias_attr=False))
    fluid.optimizer.SGD(1.0).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    build = fluid.BuildStrategy()
    build.gradient_scale_strategy = strategy
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        loss.name, build, places=fluid.cpu_places(2)
    )
    (found,) = exe.run(compiled, {"x": np.array([[1.0], [3.0]], "float32")}, ["w@GRAD"])
    assert found.tolist() == [[4 * factor], [4 * factor]]
    assert value("w") == 1 - 4 * factor


@pytest.mark.parametrize("places", [1, 2])
def test_the_gradient_of_the_loss_may_be_fed(places: int) -> None:
    x = fluid.data("x", [None, 1])
    weight = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(1.0))
    loss = L.mean(L.fc(x, 1, param_attr=weight, bias_attr=False))
    fluid.optimizer.SGD(1.0).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    build = fluid.BuildStrategy(gradient_scale_strategy=Scale.Customized)
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        loss.name, build, places=fluid.cpu_places(places)
    )
    one = {"x": np.ones((1, 1), "float32"), f"{loss.name}@GRAD": np.array([0.25], "float32")}
    exe.run(compiled, [one] * places)
    assert value("w") == 1 - 0.25 * places
    with pytest.raises(ValueError, match="@GRAD"):
        exe.run(compiled, [{"x": one["x"]}] * places)


def test_running_means_are_those_of_each_replica() -> None:
    x = fluid.data("x", [None, 1])
    y = L.batch_norm(x, momentum=0.5, moving_mean_name="mean", moving_variance_name="variance")
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    main = fluid.default_main_program()
    compiled = fluid.CompiledProgram(main).with_data_parallel(places=fluid.cpu_places(2))
    feed = {"x": np.array([[2.0], [2.0], [8.0], [8.0]], "float32")}
    for _ in range(2):
        (normed, means) = exe.run(compiled, feed, [y, "mean"])
    assert means.tolist() == [1.5, 6.0]  # from 0 halfway to 2 and to 8, twice
    assert value("mean") == 1.5
    assert normed.tolist() == [[0.0]] * 4


def test_counts_of_auc_are_those_of_each_replica() -> None:
    predict, label = fluid.data("p", [None, 1]), fluid.data("y", [None, 1], "int64")
    auc, _, _ = L.auc(predict, label)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        places=fluid.cpu_places(2)
    )
    feed = {
        "p": np.array([[0.1], [0.9], [0.9], [0.1]], "float32"),
        "y": np.array([[0], [1], [0], [1]]),
    }
    for _ in range(2):
        (found,) = exe.run(compiled, feed, [auc])
    assert found.tolist() == [1.0, 0.0]


def test_a_test_program_shares_the_variables_of_the_training_one() -> None:
    network = Network(fluid.optimizer.SGD(0.1))
    training = network.compiled()
    sharing = network.compiled(program=network.test, share_vars_from=training)
    with pytest.raises(ValueError, match="has not been run"):
        network.exe.run(sharing, batch(), [network.score])
    network.exe.run(training, batch(), [network.loss])
    with fluid.scope_guard(fluid.Scope()):  # the shared program's scope is used
        (found,) = network.exe.run(sharing, batch(), [network.score])
    (wanted,) = network.exe.run(network.test, batch(), [network.score])
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    plain = fluid.CompiledProgram(fluid.default_main_program())
    with pytest.raises(ValueError, match="not data-parallel"):
        network.exe.run(network.compiled(program=network.test, share_vars_from=plain), batch())


def test_async_replicas_train_their_parts_apart_and_the_first_is_fetched() -> None:
    network = Network(fluid.optimizer.SGD(0.1))
    before = network.values()
    compiled = network.compiled(build_strategy=fluid.BuildStrategy(async_mode=True))
    (loss, score) = network.exe.run(compiled, batch(5), [network.loss, network.score])
    assert loss.shape == (1,)
    assert score.shape == (3, 1)
    assert all((new != old).any() for new, old in zip(network.values(), before, strict=True))


def test_a_compiled_program_without_places_runs_as_it_is() -> None:
    network = Network(fluid.optimizer.SGD(0.1))
    compiled = fluid.CompiledProgram(fluid.default_main_program(), fluid.BuildStrategy())
    (loss,) = network.exe.run(compiled, batch(), [network.loss])
    assert loss.shape == (1,)


def test_each_replica_takes_a_batch_of_a_started_loader() -> None:
    x = fluid.data("x", [None, 1])
    loader = fluid.io.DataLoader.from_generator([x], capacity=4, iterable=False)
    loader.set_batch_generator(lambda: iter([[np.full((2, 1), n, "float32")] for n in range(5)]))
    total = L.reduce_sum(x)
    exe = fluid.Executor(fluid.CPUPlace())
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        places=fluid.cpu_places(2)
    )
    loader.start()
    found = [exe.run(compiled, fetch_list=[total])[0].tolist() for _ in range(2)]
    with pytest.raises(fluid.core.EOFException):  # the fifth has no partner: drop_last
        exe.run(compiled, fetch_list=[total])
    loader.reset()
    assert found == [[0.0, 2.0], [4.0, 6.0]]


def test_a_short_last_group_is_kept_without_drop_last() -> None:
    x = fluid.data("x", [None, 1])
    loader = fluid.io.DataLoader.from_generator([x], capacity=4, iterable=False, drop_last=False)
    loader.set_batch_generator(lambda: iter([[np.full((2, 1), n, "float32")] for n in range(3)]))
    total = L.reduce_sum(x)
    exe = fluid.Executor(fluid.CPUPlace())
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        places=fluid.cpu_places(2)
    )
    loader.start()
    found = [exe.run(compiled, fetch_list=[total])[0].tolist() for _ in range(2)]
    with pytest.raises(fluid.core.EOFException):
        exe.run(compiled, fetch_list=[total])
    loader.reset()
    assert found == [[0.0, 2.0], [4.0]]


def test_an_error_of_one_replica_is_raised_and_the_next_run_works() -> None:
    ids = fluid.data("ids", [None, 1], "int64")
    rows = L.embedding(ids, [4, 2])
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        places=fluid.cpu_places(2)
    )
    with pytest.raises(ValueError, match=r"test_data_parallel.py:\d+: lookup_table"):
        exe.run(compiled, {"ids": np.array([[1], [9]])}, [rows])
    (found,) = exe.run(compiled, {"ids": np.array([[1], [1]])}, [rows])
    assert found.shape == (2, 2)


def test_misuse_is_reported() -> None:
    network = Network(fluid.optimizer.SGD(0.1))
    main = fluid.default_main_program()
    with pytest.raises(TypeError, match=r"takes a fluid\.Program"):
        fluid.CompiledProgram(7)
    with pytest.raises(AssertionError, match="loss must be named"):
        fluid.CompiledProgram(main).with_data_parallel()
    with pytest.raises(ValueError, match="'lost'"):
        fluid.CompiledProgram(main).with_data_parallel(loss_name="lost")
    with pytest.raises(TypeError, match=r"expected a fluid\.BuildStrategy"):
        fluid.CompiledProgram(main, fluid.ExecutionStrategy())
    with pytest.raises(ConfigError, match="trainer 0 of 2, but this process is rank 0 of 1"):
        network.exe.run(network.compiled(build_strategy=fluid.BuildStrategy(num_trainers=2)))
    compiled = network.compiled()
    with pytest.raises(AssertionError, match="already"):
        compiled.with_data_parallel(loss_name=network.loss.name)
    network.exe.run(compiled, batch())
    with pytest.raises(ValueError, match="a different scope or place"):
        network.exe.run(compiled, batch(), scope=fluid.Scope())
    with pytest.raises(ValueError, match="run the startup program"):
        network.exe.run(network.compiled(), batch(), scope=fluid.Scope())


def test_the_program_is_drawn_where_the_strategy_says(tmp_path: Path) -> None:
    network = Network(fluid.optimizer.SGD(0.1))
    path = tmp_path / "drawings" / "program.dot"
    build = fluid.BuildStrategy(debug_graphviz_path=str(path))
    network.exe.run(network.compiled(build_strategy=build), batch())
    assert '"w" -> op' in path.read_text()


def test_cpu_num_says_how_many_replicas_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(fluid.optimizer.SGD(0.1))
    monkeypatch.setenv("CPU_NUM", "3")
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        loss_name=network.loss.name
    )
    (loss,) = network.exe.run(compiled, batch(), [network.loss])
    assert loss.shape == (3,)


def test_a_parallel_executor_runs_feeds_under_either_name(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(fluid.optimizer.SGD(0.1))
    monkeypatch.setenv("CPU_NUM", "2")
    execution = fluid.ExecutionStrategy()
    execution.num_threads = 1
    pe = fluid.ParallelExecutor(
        use_cuda=False, loss_name=network.loss.name, exec_strategy=execution
    )
    assert pe.device_count == 2
    (first,) = pe.run([network.loss.name], feed=batch())
    (second,) = pe.run(fetch_list=[network.loss], feed_dict=batch())
    assert first.shape == (2,)
    assert second.mean() < first.mean()
    pe.drop_local_exe_scopes()
    test = fluid.ParallelExecutor(
        use_cuda=False, main_program=network.test, share_vars_from=pe, scope=fluid.Scope()
    )
    assert test.run([network.score], feed=batch())[0].shape == (6, 1)
    with pytest.raises(AssertionError, match="must be a ParallelExecutor"):
        fluid.ParallelExecutor(False, main_program=network.test, share_vars_from=7)
