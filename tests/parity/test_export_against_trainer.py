"""An exported model predicts what the trainer does: within 1e-6 with torch, 1e-5 with ONNX."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.servers import JOB_KEY, NativeServers
from torch import nn

from sparsefleet import Predictor, optim
from sparsefleet.errors import ConfigError
from sparsefleet.fleet import Fleet, RoleInfo
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.train import Trainer, TrainerConfig
from sparsefleet.zoo import CtrDnn, DeepFM, Tables

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from click_log import features, generate

BCE = nn.functional.binary_cross_entropy_with_logits
QUIET = TrainerConfig(quiet=True)


def trained(model: nn.Module, batches: list[Any], fleet: Fleet | None = None) -> Trainer:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    trainer = Trainer(model, BCE, optimizer, config=QUIET, fleet=fleet or Fleet())
    trainer.fit(batches)
    return trainer


def check(predictor: Predictor, trainer: Trainer, batches: list[Any], tolerance: float) -> None:
    wanted = trainer.predict(batches).numpy()
    found = np.concatenate([predictor.predict(batch[0]) for batch in batches])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)
    assert predictor.check_golden() <= tolerance


@pytest.mark.parametrize("make", [CtrDnn, DeepFM], ids=["ctr_dnn", "deepfm"])
def test_local_training(make: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    log = generate(400, seed=1)
    model = make(features(8), tables=Tables(optimizer=optim.Adagrad(lr=0.05)))
    with trained(model, log.part(0, 300).named_batches(50)) as trainer:
        held_out = log.part(250, 400).named_batches(
            64
        )  # known and unknown ids, an uneven last batch
        manifest = trainer.export(tmp_path, held_out[0], onnx=True)
        assert manifest is not None
        assert [target.name for target in manifest.schema.targets] == ["prediction"]
        check(Predictor(tmp_path), trainer, held_out, 1e-6)
        check(Predictor(tmp_path, engine="onnx"), trainer, held_out, 1e-5)


class RaggedClicks(nn.Module):
    """tags (values, offsets) -> logits float32[B]."""

    def __init__(self) -> None:
        super().__init__()
        self.tags = SparseEmbeddingBag("tags", 4, padding_idx=0)
        self.head = nn.Linear(4, 1)

    def forward(self, tags: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return self.head(self.tags(tags)).squeeze(1)


def ragged_batches(count: int) -> list[Any]:
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(count):
        lengths = rng.integers(0, 5, 16)
        starts = np.concatenate([[0], lengths.cumsum()[:-1]])
        tags = (rng.integers(0, 50, lengths.sum()), starts)
        batches.append(({"tags": tags}, rng.integers(0, 2, 16).astype(np.float32)))
    return batches


def test_ragged_ids_trained_by_two_workers_on_two_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    batches = ragged_batches(12)

    def work(index: int, endpoints: list[str]) -> tuple[Any, np.ndarray]:
        fleet = Fleet()
        fleet.init(
            RoleInfo(kind="worker", index=index, worker_num=2, server_endpoints=tuple(endpoints))
        )
        with trained(RaggedClicks(), batches[4 * index : 4 * index + 4], fleet) as trainer:
            manifest = trainer.export(tmp_path, batches[0], golden=batches[9], onnx=False)
            return manifest, trainer.predict(batches).numpy()

    with NativeServers(2) as servers, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(work, index, servers.endpoints) for index in range(2)]
        (manifest, wanted), (nothing, _) = [future.result(120) for future in running]
    assert manifest.golden.examples == 16
    assert nothing is None
    predictor = Predictor(tmp_path)
    found = np.concatenate([predictor.predict(inputs) for inputs, _ in batches])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    assert predictor.check_golden() <= 1e-6


def test_model_whose_output_is_the_loss_needs_targets(tmp_path: Path) -> None:
    model = RaggedClicks()
    with Trainer(model, None, optim.SGD(lr=0.1), config=QUIET, fleet=Fleet()) as trainer:
        with pytest.raises(ConfigError, match="loss=None .* is not a prediction"):
            trainer.export(tmp_path, ragged_batches(1)[0][0])
        manifest = trainer.export(tmp_path, ragged_batches(1)[0][0], targets="tags", onnx=False)
    assert manifest is not None
    assert str(manifest.schema.targets[0]) == "tags: float32[batch, 4]"
