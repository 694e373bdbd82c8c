"""A torch model trained with one of Fluid's strategies."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsefleet.errors import ConfigError
from sparsefleet.fleet import Fleet
from sparsefleet.fluid.fleet import StrategyFactory, distributed_optimizer
from sparsefleet.nn import SparseEmbedding


def test_strategy_chooses_mode_and_threads() -> None:
    fleet = Fleet()
    fleet.init()
    model = nn.Sequential(SparseEmbedding("ads", 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = StrategyFactory.create_geo_strategy(update_frequency=7)
    distributed = distributed_optimizer(fleet, optimizer, strategy, model=model)
    fleet.init_worker()
    assert fleet.model.mode.name == "geo"
    with fleet.step():
        distributed.minimize(model(torch.arange(3)).sum())
    with pytest.raises(ConfigError, match=r"got \[3, 1\]; reduce it with .mean"), fleet.step():
        distributed.minimize(model(torch.arange(3)))
    fleet.stop_worker()


def test_a_fleet_without_a_role_is_refused() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"call fleet.init\(\) first"):
        distributed_optimizer(Fleet(), optimizer, model=model)
