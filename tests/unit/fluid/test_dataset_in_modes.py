"""Every Dataset trains, evaluates and predicts in every mode, with a Trainer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.fleet_workers import ENDED_WITHIN_S, fleet_of
from tests.support.servers import JOB_KEY, NativeServers
from tests.unit.train.click_model import BCE, QUIET
from torch import Tensor, nn

from sparsefleet import fluid, optim
from sparsefleet.fleet import Fleet
from sparsefleet.modes import GeoConfig
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.train import Trainer

ADAGRAD = optim.Adagrad(lr=0.1)
MODES = [
    ("sync", ADAGRAD),
    ("half_async", ADAGRAD),
    ("async", ADAGRAD),
    ("hybrid", ADAGRAD),
    (GeoConfig(push_interval_steps=5), optim.SGD(lr=2.0)),
]
MODE_NAMES = ["sync", "half_async", "async", "hybrid", "geo"]
KINDS = ["QueueDataset", "InMemoryDataset"]
NUM_RECORDS = 300


class Clicks(nn.Module):
    """Ragged ads, dense float32[B, 2] -> logits float32[B]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ads = SparseEmbeddingBag("ads", 4)
        self.head = nn.Linear(6, 1)

    def forward(self, ads: tuple[Tensor, Tensor], dense: Tensor) -> Tensor:
        return self.head(torch.cat([self.ads(ads), dense], 1)).squeeze(1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A file for each of two workers, in which small ids are clicked."""
    rng = random.Random(3)
    folder = tmp_path_factory.mktemp("clicks")
    paths = []
    for index in range(2):
        lines = []
        for _ in range(NUM_RECORDS):
            ads = [rng.randrange(1, 40) for _ in range(rng.randint(1, 4))]
            click = int(sum(ads) / len(ads) < 20)
            lines.append(f"{len(ads)} {' '.join(map(str, ads))} 2 0.5 0.25 1 {click}\n")
        paths.append(folder / f"part-{index}")
        paths[-1].write_text("".join(lines))
    return paths


def dataset_of(kind: str, files: list[Path]) -> Any:
    dataset = fluid.DatasetFactory().create_dataset(kind)
    dataset.set_use_var(
        [
            fluid.data("ads", [None, 1], "int64", lod_level=1),
            fluid.data("dense", [None, 2], "float32"),
            fluid.data("click", [None], "float32"),
        ]
    )
    dataset.set_batch_size(25)
    dataset.set_thread(2)
    dataset.set_filelist([str(path) for path in files])
    if kind == "InMemoryDataset":
        dataset.load_into_memory()
    return dataset


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeServers]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    with NativeServers(2) as running:
        yield running


def trained(trainer: Trainer, dataset: Any, num_records: int) -> dict[str, float]:
    batches = dataset.batches(label="click")
    history = trainer.fit(batches, epochs=8, validation=batches)
    assert history.examples == 8 * num_records
    assert len(trainer.predict(batches)) == num_records
    assert len(trainer.predict(dataset.batches(label="click"), labelled=True)) == num_records
    return trainer.evaluate(batches)


@pytest.mark.parametrize("kind", KINDS)
def test_one_process_learns_from_a_dataset(kind: str, files: list[Path]) -> None:
    with Trainer(Clicks(), BCE, ADAGRAD, config=QUIET, threads=2, fleet=Fleet()) as trainer:
        assert trained(trainer, dataset_of(kind, files), 2 * NUM_RECORDS)["auc"] > 0.85


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("mode", "optimizer"), MODES, ids=MODE_NAMES)
def test_two_workers_learn_from_a_dataset(
    servers: NativeServers,
    files: list[Path],
    mode: Any,
    optimizer: optim.Optimizer,
    kind: str,
) -> None:
    def work(index: int) -> dict[str, float]:
        fleet = fleet_of(servers, index, 2)
        with Trainer(
            Clicks(), BCE, optimizer, mode=mode, threads=2, config=QUIET, fleet=fleet
        ) as trainer:
            dataset = dataset_of(kind, fleet.split_files([str(path) for path in files]))
            if kind == "InMemoryDataset":
                fleet.init_worker()
                dataset.global_shuffle(fleet, seed=1)
            return trained(trainer, dataset, NUM_RECORDS)

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(work, index) for index in range(2)]
        first, second = (future.result(ENDED_WITHIN_S) for future in running)
    assert first == second  # over the data of both
    assert first["auc"] > 0.8
