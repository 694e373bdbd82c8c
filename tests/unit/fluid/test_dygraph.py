"""Fluid's imperative mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid

L, D = fluid.layers, fluid.dygraph


class Net(D.Layer):
    """A small network with most kinds of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = D.Conv2D(1, 4, 3, padding=1, act="relu")
        self.norm = D.BatchNorm(4)
        self.pool = D.Pool2D(2, "max", 2)
        self.out = D.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        return self.out(L.reshape(self.pool(self.norm(self.conv(x))), [-1, 16]))


def batch() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.random((12, 1, 4, 4), dtype="float32")
    return D.to_variable(x), D.to_variable(rng.integers(0, 3, (12, 1)))


def loss_of(net: Net, x: Any, label: Any) -> Any:
    return L.mean(L.softmax_with_cross_entropy(net(x), label))


@pytest.mark.parametrize("kind", ["SGD", "Adam", "Momentum"])
def test_a_network_learns(kind: str) -> None:
    with D.guard():
        net = Net()
        settings: dict[str, Any] = {"parameter_list": net.parameters()}
        if kind == "Momentum":
            settings["momentum"] = 0.9
        optimizer = getattr(fluid.optimizer, kind)(0.05, **settings)
        x, label = batch()
        losses = []
        for _ in range(15):
            loss = loss_of(net, x, label)
            loss.backward()
            optimizer.minimize(loss)
            net.clear_gradients()
            losses.append(float(loss))
    assert losses[-1] < losses[0] * 0.9
    assert not fluid.in_dygraph_mode()


def test_gradients_are_those_of_the_formula() -> None:
    with D.guard():
        x = D.to_variable(np.float32([1, 2]))
        x.stop_gradient = False
        y = L.reduce_sum(x * x * 3.0)
        y.backward()
        assert x.gradient().tolist() == [6.0, 12.0]
        x.clear_gradient()
        assert x.gradient() is None


def test_gradients_of_gradients() -> None:
    with D.guard():
        x = D.to_variable(np.float32([2]))
        x.stop_gradient = False
        (first,) = D.grad(x * x * x, x, create_graph=True)
        (second,) = D.grad(first, x)
        assert (float(first), float(second)) == (12.0, 12.0)


def test_nothing_is_tracked_within_no_grad() -> None:
    with D.guard():
        x = D.to_variable(np.float32([2]))
        x.stop_gradient = False
        with D.no_grad():
            y = x * 2.0
        assert y.stop_gradient
        assert not (x * 2.0).stop_gradient


def test_a_saved_network_and_optimizer_resume(tmp_path: Path) -> None:
    with D.guard():
        net = Net()
        optimizer = fluid.optimizer.Adam(0.1, parameter_list=net.parameters())
        x, label = batch()
        loss = loss_of(net, x, label)
        loss.backward()
        optimizer.minimize(loss)
        fluid.save_dygraph(net.state_dict(), str(tmp_path / "model"))
        fluid.save_dygraph(optimizer.state_dict(), str(tmp_path / "model"))
        net.eval()
        wanted = net(x).numpy()
        other = Net()
        parameters, states = fluid.load_dygraph(str(tmp_path / "model"))
        assert parameters is not None
        assert states is not None
        other.set_dict(parameters)
        other.eval()
        assert np.array_equal(other(x).numpy(), wanted)
        again = fluid.optimizer.Adam(0.1, parameter_list=other.parameters())
        again.set_dict(states)
        assert set(again.state_dict()) == set(optimizer.state_dict())


def test_a_traced_layer_runs_as_a_program(tmp_path: Path) -> None:
    with D.guard():
        net = D.Sequential(D.Linear(4, 3, act="relu"), D.Linear(3, 2))
        x = D.to_variable(np.ones((5, 4), "float32"))
        wanted, traced = D.TracedLayer.trace(net, [x])
        (found,) = traced([x])
        assert np.allclose(found, wanted.numpy(), atol=1e-6)
        traced.save_inference_model(str(tmp_path))
    exe = fluid.Executor()
    program, feeds, targets = fluid.io.load_inference_model(str(tmp_path), exe)
    (again,) = exe.run(program, feed={feeds[0]: np.ones((5, 4), "float32")}, fetch_list=targets)
    assert np.allclose(again, found, atol=1e-6)


def test_rates_of_schedules() -> None:
    noam = D.NoamDecay(100, 10)
    assert noam() == pytest.approx(100**-0.5 * 10**-1.5)
    plateau = D.ReduceLROnPlateau(1.0, decay_rate=0.5, patience=1)
    for loss in (1.0, 1.0, 1.0):
        plateau.step(loss)
    assert plateau() == 0.5
    warm = D.LinearLrWarmup(0.1, 10, 0.0, 0.1, begin=0)
    assert [round(warm(), 3) for _ in range(3)] == [0.0, 0.01, 0.02]


def test_arrays_outside_of_the_mode_are_refused() -> None:
    with pytest.raises(AssertionError, match="dygraph.guard"):
        D.to_variable(np.ones(1))


def test_layers_of_a_second_guard_have_parameters_of_their_own() -> None:
    with fluid.dygraph.guard():
        first = fluid.dygraph.Linear(2, 2)
        first.weight.set_value(np.full((2, 2), 7, "float32"))
    with fluid.dygraph.guard():
        same = fluid.dygraph.Linear(2, 2)
        assert same.weight.name == first.weight.name
        assert same.weight is not first.weight
        assert not (same.weight.numpy() == 7).any()
    with fluid.dygraph.guard():
        wider = fluid.dygraph.Linear(3, 4)
        assert wider(fluid.dygraph.to_variable(np.ones((1, 3), "float32"))).shape == [1, 4]


@pytest.mark.parametrize(
    ("rate", "kind"),
    [
        (lambda: fluid.layers.exponential_decay(0.4, 1, 0.5), "ExponentialDecay"),
        (lambda: fluid.layers.piecewise_decay([1, 2], [0.4, 0.2, 0.1]), "PiecewiseDecay"),
        (lambda: fluid.layers.polynomial_decay(0.4, 4, 0.0), "PolynomialDecay"),
        (lambda: fluid.layers.cosine_decay(0.4, 1, 4), "CosineDecay"),
        (
            lambda: fluid.layers.linear_lr_warmup(
                fluid.layers.exponential_decay(0.4, 1, 0.5), 1, 0.0, 0.0
            ),
            "LinearLrWarmup",
        ),
        (lambda: fluid.layers.noam_decay(16, 1), "NoamDecay"),
    ],
)
def test_a_schedule_made_by_a_layer_follows_the_steps(rate: Any, kind: str) -> None:
    with fluid.dygraph.guard():
        linear = fluid.dygraph.Linear(2, 1)
        schedule = rate()
        assert type(schedule).__name__ == kind
        optimizer = fluid.optimizer.SGD(schedule, parameter_list=linear.parameters())
        rates = []
        for _ in range(3):
            loss = linear(fluid.dygraph.to_variable(np.ones((1, 2), "float32")))
            loss.backward()
            optimizer.minimize(loss)
            linear.clear_gradients()
            rates.append(optimizer.current_step_lr())
        assert rates == sorted(rates, reverse=True)
        assert rates[0] > rates[-1]
        assert optimizer.state_dict()


def test_no_gradient_flows_through_a_result_that_stops_it() -> None:
    with fluid.dygraph.guard():
        stopped, other = fluid.dygraph.Linear(2, 2), fluid.dygraph.Linear(2, 2)
        x = fluid.dygraph.to_variable(np.ones((1, 2), "float32"))
        result = stopped(x)
        result.stop_gradient = True
        fluid.layers.concat([result, other(x)], axis=1).backward()
        assert stopped.weight.gradient() is None
        assert (other.weight.gradient() == 1).all()


def test_a_layer_appends_operators_by_its_helper() -> None:
    class Product(fluid.dygraph.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.weight = self.create_parameter([2, 3])

        def forward(self, x: Any) -> Any:
            made = self._helper.create_variable_for_type_inference("float32")
            self._helper.append_op("mul", {"X": x, "Y": self.weight}, {"Out": made})
            return made

    with fluid.dygraph.guard():
        assert Product()(fluid.dygraph.to_variable(np.ones((5, 2), "float32"))).shape == [5, 3]


def samples() -> Any:
    return iter([(np.ones(3, "float32"), number) for number in range(4)])


def test_a_loader_without_variables_yields_lists_of_values() -> None:
    with D.guard():
        loader = fluid.io.DataLoader.from_generator(capacity=2, return_list=True)
        loader.set_sample_generator(samples, 2, places=fluid.CPUPlace())
        for _ in range(2):
            batches = [(x.shape, label.numpy().tolist()) for x, label in loader()]
            assert batches == [([2, 3], [0, 1]), ([2, 3], [2, 3])]
        reader = fluid.io.PyReader(capacity=2)
        reader.decorate_batch_generator(lambda: iter([[np.zeros((2, 3)), [[1], [2]]]]))
        ((x, label),) = list(reader())
        assert (x.dtype, x.shape) == ("float64", [2, 3])
        assert (label.dtype, label.shape) == ("int64", [2, 1])


def test_a_shape_is_a_list() -> None:
    with D.guard():
        assert L.relu(D.to_variable(np.ones((4, 6), "float32"))).shape == [4, 6]
