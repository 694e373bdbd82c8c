"""Silent mistakes: files that were not split, predictions in arbitrary order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.fleet_workers import ENDED_WITHIN_S, fleet_of
from tests.support.servers import JOB_KEY, NativeServers
from tests.unit.train.click_model import AD_SLOTS, BCE, QUIET, AdClicks

from sparsefleet import optim
from sparsefleet.data import Reader
from sparsefleet.fleet import Fleet
from sparsefleet.train import Trainer


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for index in range(2):
        (tmp_path / f"part-{index}").write_text("1 7 1 1\n" * 5)
    return tmp_path / "part-*"


@pytest.mark.parametrize("split", ["forgotten", "part", "sharding", "function"])
def test_workers_that_read_the_same_files_are_reported(
    files: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, split: str
) -> None:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())

    def reader_of(fleet: Fleet) -> Reader:
        if split == "part":
            place = {"worker_index": fleet.worker_index(), "worker_num": 2}
            return Reader(files, AD_SLOTS, 2, label="click", **place)
        sharding = fleet.sharding("train") if split == "sharding" else None
        return Reader(files, AD_SLOTS, 2, label="click", sharding=sharding)

    def work(index: int) -> None:
        fleet = fleet_of(servers, index, 2)
        with Trainer(AdClicks(), BCE, optim.SGD(lr=0.1), config=QUIET, fleet=fleet) as trainer:
            made = reader_of(fleet)
            trainer.fit((lambda: made) if split == "function" else made, epochs=2)

    with NativeServers(1) as servers, ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(work, index) for index in range(2)]:
            future.result(ENDED_WITHIN_S)
    told = "workers 0 and 1 read the same 2 file(s)" in caplog.text
    assert told == (split in ("forgotten", "function"))


@pytest.mark.parametrize("threads", [1, 2])
def test_predictions_in_any_order_are_reported(
    files: Path, caplog: pytest.LogCaptureFixture, threads: int
) -> None:
    reader = Reader(files, AD_SLOTS, 2, label="click", threads=threads)
    with Trainer(AdClicks(), BCE, optim.SGD(lr=0.1), config=QUIET) as trainer:
        assert len(trainer.predict(reader)) == 10
    assert ("in arbitrary order" in caplog.text) == (threads > 1)
