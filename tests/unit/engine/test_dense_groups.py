"""Torch optimizers as descriptions of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sparsefleet import optim
from sparsefleet.engine.dense_groups import dense_groups, describe_optimizer
from sparsefleet.errors import ConfigError

Make = Callable[[Any], torch.optim.Optimizer]


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.2), optim.SGD(lr=0.1, l2=0.2)),
        (
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
            optim.Momentum(lr=0.1, momentum=0.9, nesterov=True),
        ),
        (
            lambda p: torch.optim.Adagrad(p, lr=0.3, initial_accumulator_value=0.1),
            optim.Adagrad(lr=0.3, initial_accumulator=0.1, eps=1e-10),
        ),
        (
            lambda p: torch.optim.Adam(p, lr=0.3, betas=(0.8, 0.9)),
            optim.Adam(lr=0.3, betas=(0.8, 0.9)),
        ),
        (lambda p: torch.optim.AdamW(p, lr=0.3), optim.AdamW(lr=0.3, l2=0.01)),
        (lambda p: torch.optim.Adamax(p, lr=0.3), optim.Adamax(lr=0.3)),
        (
            lambda p: torch.optim.RMSprop(p, lr=0.3, momentum=0.5, centered=True),
            optim.RMSprop(lr=0.3, momentum=0.5, centered=True),
        ),
        (lambda p: torch.optim.Adadelta(p, lr=0.3, rho=0.8), optim.Adadelta(lr=0.3, rho=0.8)),
    ],
)
def test_known_optimizer_is_described(make: Make, wanted: optim.Optimizer) -> None:
    optimizer = make(nn.Linear(2, 1).parameters())
    assert describe_optimizer(optimizer, optimizer.param_groups[0]) == wanted


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: torch.optim.LBFGS(p), "LBFGS; use Adadelta"),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), "AdamW only with amsgrad=False, got True"),
        (lambda p: torch.optim.RAdam(p), "RAdam; use Adadelta"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "Adam only with amsgrad=False, got True"),
        (
            lambda p: torch.optim.SGD(p, momentum=0.9, dampening=0.1),
            "only with dampening=0, got 0.1",
        ),
        (lambda p: torch.optim.SGD(p, maximize=True), "maximize=True; negate the loss"),
    ],
)
def test_unknown_optimizer_is_refused_with_the_supported_ones(make: Make, message: str) -> None:
    optimizer = make(nn.Linear(2, 1).parameters())
    with pytest.raises(ConfigError, match=message):
        describe_optimizer(optimizer, optimizer.param_groups[0])


def test_each_parameter_group_becomes_a_table() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(
        [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.2}]
    )
    groups = dense_groups(model, optimizer)
    assert [(g.table, g.optimizer) for g in groups] == [
        ("dense", optim.SGD(lr=0.1)),
        ("dense.1", optim.SGD(lr=0.2)),
    ]


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Linear(2, 1)
    model.weight.requires_grad_(False)
    [group] = dense_groups(model, optim.Adam())
    assert group.parameters == [model.bias]


def test_optimizer_only_torch_knows_is_kept_with_the_reason() -> None:
    model = nn.Linear(2, 1)
    [group] = dense_groups(model, torch.optim.Rprop(model.parameters()))
    assert group.optimizer is None
    assert "Rprop" in group.reason


def test_something_else_than_an_optimizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="got float"):
        dense_groups(nn.Linear(2, 1), 0.1)  # type: ignore[arg-type]


def test_parameters_scaled_by_norms_have_tables_of_their_own_on_one_server() -> None:
    groups = dense_groups(nn.Linear(200, 100), optim.Lamb())
    specs = [group.spec() for group in groups]
    assert [(spec.name, spec.size, spec.min_block_size) for spec in specs] == [
        ("dense", 20_000, 20_000),
        ("dense.1", 100, 8192),
    ]
