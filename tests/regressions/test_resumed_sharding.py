"""Workers that share files resume in the middle of an epoch, each from the states of all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.support.fleet_workers import ENDED_WITHIN_S, fleet_of
from tests.support.servers import JOB_KEY, NativeServers
from tests.unit.train.click_model import BCE, QUIET
from torch import Tensor, nn

from sparsefleet import optim
from sparsefleet.checkpoint import latest
from sparsefleet.data import MultiSlot, Reader, Slot
from sparsefleet.nn import SparseEmbedding
from sparsefleet.train import CheckpointConfig, Trainer

SLOTS = MultiSlot(Slot("ad", "uint64", ()), Slot("click", "float", ()))
TOTAL = 800
BATCH = 4


class Clicks(nn.Module):
    """Fails in its step number `ends_at`."""

    def __init__(self, ends_at: int | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ads = SparseEmbedding("ads", 1)
        self._left = ends_at

    def forward(self, ad: Tensor) -> Tensor:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise ArithmeticError
        return self.ads(ad).squeeze(1)


@pytest.mark.parametrize("is_function", [False, True], ids=["reader", "function"])
def test_a_stopped_epoch_is_finished_with_every_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_function: bool
) -> None:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    for part in range(5):
        lines = "".join(f"1 {ad} 1 {ad % 2}\n" for ad in range(TOTAL // 5))
        (tmp_path / f"part-{part}").write_text(lines)
    checkpoints = CheckpointConfig(directory=str(tmp_path / "saved"), every_steps=10)

    def run(ends_at: int | None) -> list[list[int]]:
        def work(index: int) -> list[int]:
            fleet = fleet_of(servers, index, 2)

            def reader() -> Reader:
                return Reader(
                    tmp_path / "part-*",
                    SLOTS,
                    BATCH,
                    label="click",
                    threads=2,
                    sharding=fleet.sharding("train"),
                )

            with Trainer(
                Clicks(ends_at),
                BCE,
                optim.SGD(lr=0.1),
                config=QUIET,
                fleet=fleet,
                checkpoints=checkpoints,
                resume="auto",
            ) as trainer:
                data = reader if is_function else reader()
                return [epoch.examples for epoch in trainer.fit(data, epochs=2).epochs]

        with NativeServers(1) as servers, ThreadPoolExecutor(2) as pool:
            running = [pool.submit(work, index) for index in range(2)]
            failures = [future.exception(ENDED_WITHIN_S) for future in running]
            if ends_at is not None:
                assert any(isinstance(failure, ArithmeticError) for failure in failures)
                return []
            return [future.result() for future in running]

    run(ends_at=30)
    newest = latest(str(tmp_path / "saved"))
    assert newest is not None
    trained = BATCH * sum(report["position"]["batches"] for report in newest.workers())
    assert 0 < trained < TOTAL
    outcomes = run(ends_at=None)
    assert [sum(epoch) for epoch in zip(*outcomes, strict=True)] == [TOTAL - trained, TOTAL]
