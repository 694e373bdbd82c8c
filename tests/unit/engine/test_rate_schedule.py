"""Learning-rate schedules by the step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsefleet import optim
from sparsefleet.engine.dense_groups import dense_groups
from sparsefleet.engine.rate_schedule import RateSchedule
from sparsefleet.errors import ConfigError


def test_torch_scheduler_gives_the_rate_of_each_group_and_followers_that_of_the_first() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(
        [{"params": [model.weight], "lr": 0.8}, {"params": [model.bias], "lr": 0.4}]
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    rates = RateSchedule(scheduler, optimizer, dense_groups(model, optimizer), ["ads"])
    assert rates.rates_at(0) == {"dense": 0.8, "dense.1": 0.4, "ads": 0.8}
    assert rates.rates_at(5) == pytest.approx({"dense": 0.2, "dense.1": 0.1, "ads": 0.2})
    assert rates.rates_at(3) == pytest.approx({"dense": 0.2, "dense.1": 0.1, "ads": 0.2})


def test_function_gives_a_factor_of_the_first_rate() -> None:
    model = nn.Linear(2, 1)
    optimizer = optim.SGD(lr=0.5)
    rates = RateSchedule(lambda step: 1 / (1 + step), optimizer, dense_groups(model, optimizer), [])
    assert rates.rates_at(4) == {"dense": 0.1}


def test_scheduler_of_another_optimizer_is_refused() -> None:
    model = nn.Linear(2, 1)
    optimizer, other = (torch.optim.SGD(model.parameters(), lr=0.5) for _ in range(2))
    scheduler = torch.optim.lr_scheduler.StepLR(other, step_size=2)
    with pytest.raises(ConfigError, match="a different optimizer"):
        RateSchedule(scheduler, optimizer, dense_groups(model, optimizer), [])
    with pytest.raises(ConfigError, match="got float"):
        RateSchedule(0.1, optimizer, dense_groups(model, optimizer), [])  # type: ignore[arg-type]


def test_scheduler_that_follows_a_metric_is_refused() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(ConfigError, match="ReduceLROnPlateau follows a metric"):
        RateSchedule(plateau, optimizer, dense_groups(model, optimizer), [])
