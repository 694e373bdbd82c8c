"""Tensors that checkpoints do not hold are constants of an exported graph; the others are named
as in checkpoints.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

from sparsefleet import Trainer, TrainerConfig, optim
from sparsefleet.nn import SparseEmbedding
from sparsefleet.serving import Predictor
from sparsefleet.serving.export import read_manifest
from sparsefleet.serving.row_stores import open_rows
from sparsefleet.serving.verify import VerifyConfig, verify
from sparsefleet.train import PublishConfig

IDS = torch.arange(64)
BATCH = (IDS, (IDS < 32).float())


class Scale(nn.Module):
    """Has a tensor of every kind; `steps` and the table of constants have names of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.arange(4.0), persistent=False)
        self.register_buffer("order", torch.tensor([3, 2, 1, 0]), persistent=False)
        self.register_buffer("calls", torch.zeros(1), persistent=False)
        self.register_buffer("mean", torch.full((4,), 0.25))
        self.attribute = torch.full((4,), 2.0)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        literal = torch.tensor([1.0, 2.0, 3.0, 4.0])
        return (x[:, self.order] * self.steps + self.mean) * self.attribute + literal


class Clicks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ads = SparseEmbedding("ads", 4)
        self.scale = Scale()
        self.constant = nn.Linear(4, 1)
        self.tied = nn.Linear(4, 1)
        self.tied.weight = self.constant.weight
        self.register_buffer("weight", torch.tensor(0.5), persistent=False)

    def forward(self, ads: Tensor) -> Tensor:
        rows = self.scale(self.ads(ads))
        return (self.constant(rows) + self.tied(rows)).squeeze(1) * self.weight


def trainer_of(model: nn.Module, publish: PublishConfig | None = None) -> Trainer:
    config = TrainerConfig(quiet=True)
    loss = nn.functional.binary_cross_entropy_with_logits
    return Trainer(model, loss, optim.Adagrad(lr=0.1), config=config, publish=publish)


def test_parameters_of_an_export_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    with trainer_of(Clicks()) as trainer:
        trainer.fit([BATCH] * 3)
        trainer.save(tmp_path / "checkpoint")
        trainer.export(tmp_path / "export", BATCH, onnx=True)
    manifest = read_manifest(tmp_path / "export")
    found = load_file(tmp_path / "export" / manifest.parameters)
    assert sorted(found) == ["constant.bias", "constant.weight", "scale.mean", "tied.bias"]
    report = verify(tmp_path / "export", [tmp_path / "checkpoint"])
    assert report.passed, [finding for result in report.results for finding in result.findings]


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_constants_stay_when_a_served_model_is_updated(tmp_path: Path, engine: str) -> None:
    model = Clicks()
    with trainer_of(model) as trainer:
        trainer.fit([BATCH] * 3)
        trainer.export(tmp_path / "export", BATCH, onnx=True)
    publish = PublishConfig(model=tmp_path / "export", target=tmp_path / "updates", every_steps=2)
    with trainer_of(model, publish) as trainer:
        trainer.fit([BATCH] * 4)
        trainer.save(tmp_path / "checkpoint")
        wanted = trainer.predict([BATCH]).numpy()
    rows = open_rows(
        tmp_path / "export", read_manifest(tmp_path / "export"), updates=tmp_path / "updates"
    )
    found = Predictor(tmp_path / "export", rows=rows, engine=engine).predict(IDS.numpy())
    rows.close()
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    config = VerifyConfig(updates=str(tmp_path / "updates"))
    assert verify(tmp_path / "export", [tmp_path / "checkpoint"], config).passed
