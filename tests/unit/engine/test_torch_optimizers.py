"""Optimizer descriptions as torch optimizers, compared with tables that use them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sparsefleet import optim
from sparsefleet.engine.torch_optimizers import torch_optimizer
from sparsefleet.errors import ConfigError
from sparsefleet.store import DenseSpec, LocalStore

RULES = {
    "sgd": optim.SGD(lr=0.1, l1=0.01, l2=0.02),
    "momentum": optim.Momentum(lr=0.1, l1=0.01, nesterov=True),
    "adagrad": optim.Adagrad(lr=0.1, l2=0.02, initial_accumulator=0.1),
    "decayed_adagrad": optim.DecayedAdagrad(lr=0.1, l1=0.01, l2=0.02),
    "rmsprop": optim.RMSprop(lr=0.01, l2=0.02, momentum=0.9, centered=True),
    "adadelta": optim.Adadelta(lr=0.5, l1=0.01, l2=0.02),
    "adam": optim.Adam(lr=0.01, l1=0.01, l2=0.02),
    "adamax": optim.Adamax(lr=0.01, l2=0.02),
    "ftrl": optim.Ftrl(lr=0.1, l1=0.02, l2=0.03, initial_accumulator=0.1),
}


@pytest.mark.parametrize("name", RULES)
def test_a_description_steps_as_a_table_of_it_does(name: str) -> None:
    rng = np.random.default_rng(1)
    first = rng.normal(size=6).astype(np.float32)
    parameter = nn.Parameter(torch.from_numpy(first.copy()))
    made = torch_optimizer(RULES[name], [parameter])
    with LocalStore() as store:
        store.define(DenseSpec(name="net", size=6, optimizer=RULES[name]))
        store.write_dense("net", first)
        for _ in range(20):
            gradient = rng.normal(size=6).astype(np.float32)
            store.push_dense("net", gradient)
            parameter.grad = torch.from_numpy(gradient.copy())
            made.step()
        wanted = store.pull_dense("net")
    np.testing.assert_allclose(parameter.detach().numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_norms_of_parameters_are_for_servers() -> None:
    with pytest.raises(
        ConfigError, match="dense parameters do not support Lamb; use .* from sparsefleet.optim"
    ):
        torch_optimizer(optim.Lamb(), [nn.Parameter(torch.zeros(2))])


def test_a_rule_for_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="dense parameters do not support RowwiseAdagrad"):
        torch_optimizer(optim.RowwiseAdagrad(lr=0.1), [nn.Parameter(torch.zeros(2))])
