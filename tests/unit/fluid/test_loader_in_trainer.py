from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sparsefleet import Trainer, TrainerConfig, fluid
from sparsefleet.errors import ConfigError
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag

CPU = fluid.CPUPlace()
ADS = fluid.layers.data("ads", [1], dtype="int64", lod_level=1)
DENSE = fluid.data("dense", [None, 2], "float32")
CLICK = fluid.layers.data("click", [], dtype="float32")


class Clicks(nn.Module):
    """A sum of rows next to dense inputs; computes the loss itself if it gets the clicks."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = SparseEmbeddingBag("ads", 4)
        self.head = nn.Linear(4 + 2, 1)

    def forward(
        self, ads: tuple[Tensor, Tensor], dense: Tensor, click: Tensor | None = None
    ) -> Tensor:
        scores: Tensor = self.head(torch.cat([self.bag(ads), dense], 1)).squeeze(1)
        if click is None:
            return scores
        return nn.functional.binary_cross_entropy_with_logits(scores, click)


def samples() -> Iterator[tuple[list[int], list[float], float]]:
    for number in range(20):
        yield [number, number + 1][: 1 + number % 2], [0.5, number / 20], float(number % 2)


def losses(loss: Any, data: Any, epochs: int) -> list[float]:
    torch.manual_seed(0)
    model = Clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    config = TrainerConfig(quiet=True)
    with Trainer(model, loss, optimizer, config=config) as trainer:
        return [epoch.loss for epoch in trainer.fit(data, epochs=epochs).epochs]


def test_lists_and_dicts_of_a_loader_train_the_same() -> None:
    lists = fluid.io.DataLoader.from_generator([ADS, DENSE, CLICK], 4, return_list=True)
    lists.set_sample_generator(samples, 5, places=CPU)
    dicts = fluid.io.PyReader([ADS, DENSE, CLICK], 4)
    dicts.decorate_sample_generator(samples, 5, places=CPU)
    by_list = losses(nn.BCEWithLogitsLoss(), lists, 3)
    by_dict = losses(None, dicts, 3)
    assert by_list == pytest.approx(by_dict)
    assert by_list[2] < by_list[0]


def test_one_variable_with_lod_is_one_argument() -> None:
    loader = fluid.io.DataLoader.from_generator([ADS, CLICK], 4, return_list=True)
    pairs = ((ads, click) for ads, _, click in samples())
    loader.set_sample_generator(lambda: pairs, 5, places=CPU)
    model = nn.Sequential(SparseEmbeddingBag("ads", 4), nn.Linear(4, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    config = TrainerConfig(quiet=True)
    with Trainer(model, nn.BCEWithLogitsLoss(), optimizer, config=config) as trainer:
        assert trainer.fit(loader).examples == 20


def test_an_error_of_the_generator_ends_training() -> None:
    def failing() -> Iterator[Any]:
        yield from samples()
        raise KeyError("no such slot")

    loader = fluid.io.DataLoader.from_generator([ADS, DENSE, CLICK], 4, return_list=True)
    loader.set_sample_generator(failing, 5, places=CPU)
    with pytest.raises(KeyError, match="no such slot"):
        losses(nn.BCEWithLogitsLoss(), loader, 1)


def test_two_levels_of_lod_are_refused_by_name() -> None:
    deep = fluid.layers.data("ads", [1], dtype="int64", lod_level=2)
    loader = fluid.io.DataLoader.from_generator([deep, CLICK], 4, return_list=True)
    loader.set_sample_generator(lambda: iter([([[1], [2]], 1.0)]), 1, places=CPU)
    with pytest.raises(ConfigError, match="2 levels of LoD"):
        losses(nn.BCEWithLogitsLoss(), loader, 1)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_plain_torch_loader_trains_as_well(num_workers: int) -> None:
    class Score(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ids = SparseEmbedding("ids", 4)
            self.head = nn.Linear(4, 1)

        def forward(self, ids: Tensor) -> Tensor:
            scores: Tensor = self.head(self.ids(ids)).squeeze(1)
            return scores

    data = TensorDataset(torch.arange(20), (torch.arange(20) % 2).float())
    model = Score()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = DataLoader(data, batch_size=6, shuffle=True, num_workers=num_workers)
    config = TrainerConfig(quiet=True)
    with Trainer(model, nn.BCEWithLogitsLoss(), optimizer, config=config) as trainer:
        assert trainer.fit(loader, epochs=2).examples == 40


def test_the_summary_tells_of_the_loader() -> None:
    loader = fluid.io.DataLoader.from_generator([ADS, DENSE, CLICK], 4, return_list=True)
    loader.set_sample_generator(samples, 5, places=CPU)
    torch.manual_seed(0)
    model = Clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    config = TrainerConfig(quiet=True)
    with Trainer(model, nn.BCEWithLogitsLoss(), optimizer, config=config) as trainer:
        history = trainer.fit(loader, epochs=2)
    for epoch in history.epochs:
        assert epoch.reading is not None
        assert (epoch.reading.records, epoch.reading.batches) == (20, 4)
        assert (epoch.reading.threads, epoch.reading.lines) == (1, 0)
    assert loader.stats().records == 40
    for _ in loader:
        break
    assert loader.stats().batches == 9
