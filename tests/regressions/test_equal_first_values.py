"""Workers start with equal values, even if one of them trains before another has started."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.support.fleet_workers import ENDED_WITHIN_S, fleet_of
from tests.support.servers import NativeServers
from torch import nn

from sparsefleet import optim
from sparsefleet.modes.mode import Mode


@pytest.mark.usefixtures("job_key")
@pytest.mark.parametrize("mode", ["async", "half_async", "geo"])
def test_late_worker_starts_with_the_values_from_before_the_first_step(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_trained = threading.Event()
    start = Mode.start

    def start_worker_1_late(self: Mode) -> None:
        if self._setting.worker_index == 1:
            assert has_trained.wait(ENDED_WITHIN_S)
        start(self)

    monkeypatch.setattr(Mode, "start", start_worker_1_late)

    def work(index: int) -> torch.Tensor:
        model = nn.Linear(1, 1)
        fleet = fleet_of(servers, index, 2)
        fleet.distribute(model, optim.SGD(lr=0.1), mode)
        fleet.init_worker()
        first = model.weight.detach().clone()
        if index == 0:
            with fleet.step():
                model(torch.ones(1, 1)).sum().backward()
            fleet.model.flush()
            has_trained.set()
        fleet.stop_worker()
        return first

    with NativeServers(1) as servers, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(work, index) for index in range(2)]
        first, other = (worker.result(ENDED_WITHIN_S) for worker in running)
    assert torch.equal(first, other)
