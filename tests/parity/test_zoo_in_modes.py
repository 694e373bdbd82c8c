"""Models of the zoo learn with their rows on servers: each in one mode, one in all modes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.servers import JOB_KEY, NativeServers
from tests.unit.zoo.cases import CASES, labels_of, make_batch

from sparsefleet import optim
from sparsefleet.fleet import Fleet, RoleInfo
from sparsefleet.train import Trainer, TrainerConfig

MODES = ("sync", "half_async", "async", "hybrid", "geo")
PAIRS = [
    *((name, MODES[at % len(MODES)]) for at, name in enumerate(CASES)),
    *(("deepfm", mode) for mode in MODES if mode != MODES[list(CASES).index("deepfm")]),
]


@pytest.mark.job
@pytest.mark.parametrize(("name", "mode"), PAIRS)
def test_a_model_learns_with_its_rows_on_servers(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    torch.manual_seed(1)
    case = CASES[name]
    batch: Any = (make_batch(5, without=case.without), labels_of(case))
    optimizer = optim.SGD(lr=0.3) if mode == "geo" else optim.Adagrad(lr=0.1)
    with NativeServers(2) as servers:
        fleet = Fleet()
        fleet.init(
            RoleInfo(
                kind="worker", index=0, worker_num=1, server_endpoints=tuple(servers.endpoints)
            )
        )
        config = TrainerConfig(quiet=True)
        with Trainer(
            case.make(), case.loss, optimizer, mode=mode, config=config, fleet=fleet
        ) as trainer:
            before = trainer.evaluate([batch])["loss"]
            trainer.fit([batch] * 60)
            assert trainer.evaluate([batch])["loss"] < 0.9 * before
