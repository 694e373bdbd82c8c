"""A Trainer whose data function does a global shuffle in each epoch."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.fleet_workers import ENDED_WITHIN_S, fleet_of
from tests.support.servers import JOB_KEY, NativeServers
from tests.unit.train.click_model import AD_SLOTS, BCE, QUIET, AdClicks

from sparsefleet import optim
from sparsefleet.data import MemoryData, Reader
from sparsefleet.train import Trainer


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_each_epoch_has_every_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    (tmp_path / "part").write_text("".join(f"1 {ad} 1 {ad % 2}\n" for ad in range(60)))

    def work(index: int) -> list[int]:
        fleet = fleet_of(servers, index, 2)
        files = fleet.split_files([str(tmp_path / "part")])  # the second worker has none
        data = MemoryData(Reader(files, AD_SLOTS, 4, label="click"))

        def shuffled() -> Iterable[object]:
            data.global_shuffle(fleet)
            return data

        with Trainer(
            AdClicks(), BCE, optim.SGD(lr=0.1), mode=mode, config=QUIET, fleet=fleet
        ) as trainer:
            return [epoch.examples for epoch in trainer.fit(shuffled, epochs=3).epochs]

    with NativeServers(1) as servers, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(work, index) for index in range(2)]
        outcomes = [future.result(ENDED_WITHIN_S) for future in running]
    assert [sum(epoch) for epoch in zip(*outcomes, strict=True)] == [60] * 3
    assert all(all(epochs) for epochs in outcomes)
