from __future__ import annotations

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparsefleet import Trainer, TrainerConfig, fluid
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.io import DataLoader

X = fluid.data("x", [None, 1], "int64")
ADS = fluid.data("ads", [None, 1], "int64", lod_level=1)


class Squares:
    """Sample n is (n, n squared); counts the requests."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[int, float]:
        self.asked.append(number)
        return number, float(number * number)


def firsts(batches: Any) -> list[list[int]]:
    return [batch[0].numpy().ravel().tolist() for batch in batches]


def test_gives_samples_in_their_order_by_name_or_as_lists() -> None:
    y = fluid.layers.data("y", [1])
    named = DataLoader(Squares(5), [X, y], fluid.CPUPlace(), batch_size=2)
    assert [batch["x"].shape() for batch in named()] == [[2, 1], [2, 1], [1, 1]]
    assert next(iter(named))["y"].tensor.dtype == torch.float32
    lists = DataLoader(Squares(5), [X, y], return_list=True, batch_size=2, drop_last=True)
    assert firsts(lists) == [[0, 1], [2, 3]]
    assert (len(named), len(lists)) == (3, 2)


def test_sequences_become_lod() -> None:
    loader = DataLoader([([1, 2], 0), ([3], 1)], [ADS, X], batch_size=2)
    (batch,) = loader
    assert batch["ads"].lod() == [[0, 2, 3]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_give_the_same_in_the_same_order(num_workers: int) -> None:
    loader = DataLoader(Squares(11), return_list=True, batch_size=3, num_workers=num_workers)
    assert firsts(loader) == firsts(loader) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]


def test_shuffles_again_in_each_pass_from_torchs_seed() -> None:
    passes = []
    for _ in range(2):
        torch.manual_seed(5)
        loader = DataLoader(Squares(30), return_list=True, batch_size=30, shuffle=True)
        passes.append([firsts(loader), firsts(loader)])
    assert passes[0] == passes[1]
    assert passes[0][0] != passes[0][1]
    assert sorted(passes[0][0][0]) == list(range(30))


def test_takes_a_sampler_and_a_collate_function() -> None:
    loader = DataLoader(
        Squares(9),
        [X],
        batch_sampler=[[8, 1], [3]],
        collate_fn=lambda samples: [np.array([[sample[0]] for sample in samples])],
    )
    assert [batch["x"].numpy()[:, 0].tolist() for batch in loader] == [[8, 1], [3]]
    assert len(loader) == 2


@pytest.mark.parametrize(("drop_last", "sizes"), [(True, [2]), (False, [2, 1])])
def test_several_places_get_a_batch_each(drop_last: bool, sizes: list[int]) -> None:
    loader = DataLoader(
        Squares(3), [X, X], fluid.cpu_places(2), True, batch_size=1, drop_last=drop_last
    )
    assert [len(group) for group in loader] == sizes
    assert len(loader) == len(sizes)


@pytest.mark.parametrize("stop", range(5))
def test_resumes_at_the_batch_without_asking_for_the_samples_before(stop: int) -> None:
    def make() -> tuple[Squares, DataLoader]:
        data = Squares(20)
        return data, DataLoader(data, return_list=True, batch_size=5, shuffle=True)

    _, first = make()
    begin = json.loads(json.dumps(first.state_dict()))
    list(first)
    batches = iter(first)
    had = firsts(islice(batches, stop))
    state = json.loads(json.dumps(first.state_dict()))
    data, second = make()
    second.load_state_dict(state)
    rest = firsts(second)
    assert len(data.asked) == 20 - 5 * stop
    _, whole = make()
    whole.load_state_dict(begin)
    list(whole)
    assert had + rest == firsts(whole)
    assert firsts(second) == firsts(whole)


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs feed_list to name its tensors"):
        DataLoader(Squares(3))
    with pytest.raises(ConfigError, match="batch_size must be an int >= 1"):
        DataLoader(Squares(3), return_list=True, batch_size=0)


def test_errors_of_the_dataset_are_raised() -> None:
    class Broken(Squares):
        def __getitem__(self, number: int) -> tuple[int, float]:
            raise KeyError("no such sample")

    with pytest.raises(KeyError, match="no such sample"):
        list(DataLoader(Broken(3), return_list=True))


def test_trains() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 1), nn.Flatten(0))
    data = [([n / 9], n / 3) for n in range(10)]
    feeds = [fluid.layers.data("x", [1]), fluid.layers.data("y", [])]
    loader = DataLoader(data, feeds, return_list=True, batch_size=4, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Trainer(model, nn.MSELoss(), optimizer, config=TrainerConfig(quiet=True)) as trainer:
        history = trainer.fit(loader, epochs=3)
    assert history.examples == 30
    assert history.epochs[2].loss < history.epochs[0].loss
