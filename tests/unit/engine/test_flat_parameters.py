"""Dense parameters as views of flat buffers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sparsefleet.engine.flat_parameters import FlatParameters, drop_gradients, take_gradients
from sparsefleet.errors import ConfigError


def flat_model() -> tuple[nn.Module, FlatParameters]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    return model, FlatParameters(model, {"dense": list(model.parameters())})


def test_values_are_kept_and_parameters_are_views_of_one_buffer() -> None:
    torch.manual_seed(0)
    twin = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    model, flat = flat_model()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    flat.arrays["dense"][:] = 2.0
    assert all(bool((p == 2.0).all()) for p in model.parameters())
    assert flat.arrays["dense"].shape == (3 * 4 + 4 + 4 + 1,)


def test_replica_sees_writes_and_has_gradients_of_its_own() -> None:
    model, flat = flat_model()
    replica = flat.replica()
    replica(torch.ones(1, 3)).sum().backward()
    assert all(p.grad is None for p in model.parameters())
    assert all(p.grad is not None for p in replica.parameters())
    flat.arrays["dense"][:] = 0.5
    assert torch.equal(replica(torch.ones(1, 3)), model(torch.ones(1, 3)))


def test_in_place_update_by_another_thread_does_not_trip_the_version_check() -> None:
    model, flat = flat_model()
    replica = flat.replica()
    output = replica(torch.ones(1, 3)).sum()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    output.backward()
    assert all(p.grad is not None for p in replica.parameters())


def test_shared_parameter_is_held_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    flat = FlatParameters(model, {"dense": list(model.parameters())})
    assert flat.arrays["dense"].size == 4
    replica = flat.replica()
    assert replica[1].weight is replica[0].weight  # type: ignore[index]


def test_buffers_are_shared_with_replicas() -> None:
    model = nn.BatchNorm1d(2)
    flat = FlatParameters(model, {"dense": list(model.parameters())})
    flat.replica()(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert model.running_mean is not None
    assert model.running_mean.tolist() == pytest.approx([0.2, 0.3])


def test_gradients_are_taken_in_order_and_missing_ones_are_zero() -> None:
    model, flat = flat_model()
    parameters = flat.parameters_of(model)
    assert take_gradients(parameters) == {}
    last = parameters["dense"][-1]
    last.grad = torch.tensor([3.0])
    taken = take_gradients(parameters)
    assert taken["dense"][-1] == 3.0
    assert np.count_nonzero(taken["dense"]) == 1
    assert last.grad is None


def test_sparse_and_transposed_gradients_are_taken_element_by_element() -> None:
    model = nn.ModuleList([nn.Embedding(2, 2, sparse=True), nn.Linear(2, 2, bias=False)])
    flat = FlatParameters(model, {"dense": list(model.parameters())})
    model[0](torch.tensor([1])).sum().backward()  # type: ignore[operator]
    model[1].weight.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).T  # type: ignore[union-attr]
    assert take_gradients(flat.parameters_of(model))["dense"].tolist() == [0, 0, 1, 1, 1, 3, 2, 4]


def test_dropped_gradients_are_gone() -> None:
    model, flat = flat_model()
    model(torch.ones(1, 3)).sum().backward()
    drop_gradients(flat.parameters_of(model))
    assert all(p.grad is None for p in model.parameters())


def test_parameter_of_another_model_is_refused() -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(ConfigError, match=r"shape \[3, 3\] that the model does not have"):
        FlatParameters(model, {"dense": [nn.Parameter(torch.ones(3, 3))]})


def test_double_precision_parameter_is_refused_by_name() -> None:
    model = nn.Linear(2, 1).double()
    with pytest.raises(ConfigError, match=r"'weight' is torch.float64"):
        FlatParameters(model, {"dense": list(model.parameters())})


def test_hooks_of_parameters_work_in_replicas() -> None:
    model = nn.Linear(2, 1)
    model.weight.register_hook(lambda gradient: gradient * 3)
    seen: list[nn.Parameter] = []
    model.bias.register_post_accumulate_grad_hook(seen.append)
    flat = FlatParameters(model, {"dense": list(model.parameters())})
    replica = flat.replica()
    replica(torch.ones(1, 2)).sum().backward()
    assert replica.weight.grad.tolist() == [[3.0, 3.0]]
    assert seen == [replica.bias]


def test_gradients_with_a_graph_are_taken() -> None:
    model = nn.Linear(2, 1)
    flat = FlatParameters(model, {"dense": list(model.parameters())})
    for parameter in model.parameters():  # as backward(create_graph=True) leaves them
        parameter.grad = parameter * 2
    assert len(take_gradients(flat.parameters_of(model))["dense"]) == 3
