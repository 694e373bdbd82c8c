"""Workers that take files from one list, in modes with and without waiting for each other."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.support.fleet_workers import ENDED_WITHIN_S, fleet_of
from tests.support.servers import JOB_KEY, NativeServers
from tests.unit.train.click_model import BCE, QUIET
from torch import Tensor, nn

from sparsefleet import optim
from sparsefleet.data import MultiSlot, Reader, Slot
from sparsefleet.nn import SparseEmbedding
from sparsefleet.train import Trainer

SLOTS = MultiSlot(Slot("ad", "uint64", ()), Slot("click", "float", ()))


class Clicks(nn.Module):
    """ad int64[B] -> logits float32[B]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ads = SparseEmbedding("ads", 4)
        self.head = nn.Linear(4, 1)

    def forward(self, ad: Tensor) -> Tensor:
        return self.head(self.ads(ad)).squeeze(1)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_all_records_are_trained_and_evaluated_once_per_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    rng = random.Random(2)
    for index in range(5):
        ads = [rng.randrange(40) for _ in range(40 * (index + 1))]
        lines = "".join(f"1 {ad} 1 {int(ad < 20)}\n" for ad in ads)
        (tmp_path / f"part-{index}").write_text(lines)

    def work(index: int) -> tuple[int, dict[str, float]]:
        fleet = fleet_of(servers, index, 2)
        train, held_out = (
            Reader(tmp_path / "part-*", SLOTS, 20, label="click", sharding=fleet.sharding(name))
            for name in ("train", "held out")
        )
        with Trainer(
            Clicks(), BCE, optim.Adagrad(lr=0.5), mode=mode, threads=2, config=QUIET, fleet=fleet
        ) as trainer:
            history = trainer.fit(train, epochs=4, validation=held_out)
            return history.examples, trainer.evaluate(held_out)

    with NativeServers(2) as servers, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(work, index) for index in range(2)]
        (mine, figures), (theirs, others) = (future.result(ENDED_WITHIN_S) for future in running)
    assert mine + theirs == 4 * 600
    assert figures == others
    assert figures["auc"] > 0.9
