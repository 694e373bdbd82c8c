"""Sums of bags on distinct rows equal torch's own, in values and in gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparsefleet import _core
from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.nn import SparseEmbedding, bind, import_embedding
from sparsefleet.nn.bag_sums import Bags, sum_rows_by_bag
from sparsefleet.nn.lookup import Lookup
from sparsefleet.nn.pulled_rows import pull_rows
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.optim import SGD
from sparsefleet.store import LocalStore

IDS = [torch.tensor([3, 1, 3, 3, 0]), torch.tensor([2, 3])]
LENGTHS = [np.array([2, 0, 3]), np.array([1, 1, 0])]


def table(name: str, weight: torch.Tensor) -> SparseEmbedding:
    module = SparseEmbedding(name, weight.shape[1], optimizer=SGD(lr=1.0))
    import_embedding(module, weight)
    return module


def torch_sum(weight: torch.Tensor, at: int) -> torch.Tensor:
    offsets = torch.from_numpy(LENGTHS[at].cumsum() - LENGTHS[at])
    return nn.functional.embedding_bag(IDS[at], weight, offsets, mode="sum")


def gradients(*modules: SparseEmbedding) -> dict[str, dict[int, Any]]:
    taken = [module.take_gradients() for module in modules]
    return {
        name: dict(zip(keys.tolist(), sums, strict=True))
        for one in taken
        for name, (keys, sums) in one.items()
    }


def test_two_tables_are_summed_side_by_side_and_get_their_gradients() -> None:
    weights = [torch.randn(4, 2, requires_grad=True), torch.randn(4, 3, requires_grad=True)]
    modules = [table(f"t{at}", weight.detach()) for at, weight in enumerate(weights)]
    found = sum_rows_by_bag([Bags(*each) for each in zip(modules, IDS, LENGTHS, strict=True)])
    wanted = torch.cat([torch_sum(weight, at) for at, weight in enumerate(weights)], dim=1)
    assert torch.equal(found, wanted)
    scale = torch.randn(3, 5)
    (found * scale).sum().backward()
    (wanted * scale).sum().backward()
    made = gradients(*modules)
    assert set(made["t0"]) == {0, 1, 3}
    assert set(made["t1"]) == {2, 3}
    for at, weight in enumerate(weights):
        assert weight.grad is not None
        for key, row in made[f"t{at}"].items():
            np.testing.assert_allclose(row, weight.grad[key], rtol=1e-6)


def test_gradients_do_not_need_the_very_tensors_of_the_forward_pass() -> None:
    """As with activation checkpoints, or saved tensors that are offloaded."""
    modules = [table(name, torch.ones(4, 2)) for name in ("a", "b")]
    with torch.autograd.graph.save_on_cpu():
        found = sum_rows_by_bag([Bags(*each) for each in zip(modules, IDS, LENGTHS, strict=True)])
    found.sum().backward()
    made = gradients(*modules)
    assert {key: row.tolist() for key, row in made["a"].items()} == {
        0: [1, 1],
        1: [1, 1],
        3: [3, 3],
    }
    assert {key: row.tolist() for key, row in made["b"].items()} == {2: [1, 1], 3: [1, 1]}


def test_features_of_one_table_add_their_gradients() -> None:
    module = table("shared", torch.ones(4, 2))
    bags = [Bags(module, ids, lengths) for ids, lengths in zip(IDS, LENGTHS, strict=True)]
    sum_rows_by_bag(bags).sum().backward()
    made = gradients(module)["shared"]
    assert {key: row.tolist() for key, row in made.items()} == {
        3: [4.0, 4.0],
        1: [1.0, 1.0],
        0: [1.0, 1.0],
        2: [1.0, 1.0],
    }


def test_a_frozen_module_of_the_same_table_adds_no_gradient() -> None:
    weight = torch.ones(4, 2)
    trained, frozen = (SparseEmbedding("both", 2, optimizer=SGD(lr=1.0)) for _ in range(2))
    frozen.eval()
    store = LocalStore()
    bind(nn.ModuleList([trained, frozen]), store)
    import_embedding(trained, weight)

    def pull(keys: Any, **how: Any) -> Any:
        return store.pull_many(keys, **how)[0]

    lookups = [Lookup("both", 2, ids) for ids in IDS]
    with StepRows(pull, pulled=pull_rows(lookups, pull)) as step:
        features = zip((trained, frozen), IDS, LENGTHS, strict=True)
        sum_rows_by_bag([Bags(*each) for each in features]).sum().backward()
    keys, sums = step.gradients()["both"]
    found = dict(zip(keys.tolist(), sums.tolist(), strict=True))
    assert found == {3: [3.0, 3.0], 1: [1.0, 1.0], 0: [1.0, 1.0]}


def test_gradients_of_parameters_alone_leave_the_rows_without() -> None:
    module, layer = table("alone", torch.ones(4, 2)), nn.Linear(2, 1)
    total = layer(sum_rows_by_bag([Bags(module, IDS[0], LENGTHS[0])])).sum()
    torch.autograd.grad(total, list(layer.parameters()), retain_graph=True)
    assert module.take_gradients() == {}
    total = layer(sum_rows_by_bag([Bags(module, IDS[0], LENGTHS[0])])).sum()
    total.backward(retain_graph=True)
    total.backward()
    _, sums = module.take_gradients()["alone"]
    np.testing.assert_allclose(sums[0], 6 * layer.weight.detach()[0], rtol=1e-6)


def test_padding_adds_nothing_and_evaluation_makes_no_graph() -> None:
    module = SparseEmbedding("padded", 2, padding_idx=3)
    import_embedding(module, torch.ones(4, 2))
    module.eval()
    found = sum_rows_by_bag([Bags(module, IDS[0], LENGTHS[0])])
    assert found.tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    assert not found.requires_grad


def test_a_second_derivative_is_refused_by_name() -> None:
    module = table("twice", torch.ones(4, 2))
    total = sum_rows_by_bag([Bags(module, IDS[0], LENGTHS[0])]).square().sum()
    with pytest.raises(ConfigError, match="no second derivative"):
        total.backward(create_graph=True)


@pytest.mark.parametrize("lengths", [[2, 2], [-1, 4], [1, 1, 1], [4, -1]])
def test_lengths_that_do_not_fit_the_ids_are_refused(lengths: list[int]) -> None:
    rows = np.ones((2, 2), np.float32)
    places = np.zeros(3, np.uint32)
    with pytest.raises(ShapeError, match="bags"):
        _core.sum_bags([(rows, places, np.array(lengths))], np.empty((2, 2), np.float32))


def test_a_place_beyond_the_rows_is_refused() -> None:
    rows, places = np.ones((2, 2), np.float32), np.array([5], np.uint32)
    with pytest.raises(ShapeError, match="row 5 of 2"):
        _core.sum_bags([(rows, places, np.array([1]))], np.empty((1, 2), np.float32))
