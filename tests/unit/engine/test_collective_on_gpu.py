"""Mode "collective" on a simulated GPU: what is placed on it, and what is copied back."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.simulated_gpu import GPU, simulated_gpu
from torch import Tensor, nn

from sparsefleet.collective import CollectiveStrategy, LocalSgdConfig
from sparsefleet.fleet import Fleet
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag
from sparsefleet.train import Trainer


class Clicks(nn.Module):
    """Tables with rows on the CPU, and layers on the GPU; all inputs are moved."""

    def __init__(self) -> None:
        super().__init__()
        self.users = SparseEmbedding("users", 4, seed=1)
        self.words = SparseEmbeddingBag("words", 4, mode="mean", seed=2)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids: Tensor) -> Tensor:
        rows = torch.cat([self.users(ids[:, 0]), self.words(ids[:, 1:])], 1)
        return self.layers(rows).squeeze(1)


def _batches() -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(4)
    return [
        (
            torch.randint(0, 9, (8, 4), generator=draw),
            torch.randint(0, 2, (8,), generator=draw).float(),
        )
        for _ in range(4)
    ]


def _trained(folder: Path, strategy: CollectiveStrategy, *, on_gpu: bool) -> dict[str, Any]:
    batches = _batches()
    torch.manual_seed(0)
    model = Clicks()
    with simulated_gpu() if on_gpu else nullcontext():
        fleet = Fleet()
        fleet.init()
        trainer = Trainer(
            model,
            nn.functional.binary_cross_entropy_with_logits,
            torch.optim.Adam(model.parameters(), lr=0.01),
            mode="collective",
            strategy=strategy,
            fleet=fleet,
        )
        with trainer:
            trainer.fit(batches, epochs=2)
            scores = trainer.evaluate(batches)
            predicted = trainer.predict(batches)
            trainer.save(folder)
            trainer.load(folder)
            trainer.fit(batches)
        devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
        state = {
            name: value.cpu().clone()
            for name, value in model.state_dict().items()
            if isinstance(value, Tensor)
        }
    return {"scores": scores, "predicted": predicted, "devices": devices, "state": state}


@pytest.mark.parametrize(
    "strategy",
    [
        CollectiveStrategy(sync_batch_norm=True, gradient_merge_steps=2),
        CollectiveStrategy(local_sgd=LocalSgdConfig(steps=2)),
    ],
)
def test_a_trainer_on_a_gpu_learns_what_it_does_on_the_cpu(
    tmp_path: Path, strategy: CollectiveStrategy
) -> None:
    wanted = _trained(tmp_path / "cpu", strategy, on_gpu=False)
    found = _trained(tmp_path / "gpu", strategy, on_gpu=True)
    assert found["devices"] == {GPU}
    assert found["scores"] == wanted["scores"]
    assert torch.equal(found["predicted"], wanted["predicted"])
    assert found["predicted"].device.type == "cpu"
    for name, value in wanted["state"].items():
        assert torch.equal(found["state"][name], value), name
