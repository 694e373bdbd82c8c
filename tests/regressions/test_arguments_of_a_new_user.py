"""Arguments that a new user passes by mistake, and the errors that name the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sparsefleet import TableSpec, Trainer, TrainerConfig, optim, zoo
from sparsefleet.errors import ConfigError
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag
from sparsefleet.store import LocalStore
from sparsefleet.torchrec_like import EmbeddingBagCollection, EmbeddingBagConfig

CONFIG = EmbeddingBagConfig(name="ads", embedding_dim=4, num_embeddings=10, feature_names=["shown"])


def clicks() -> nn.Module:
    return nn.Sequential(SparseEmbeddingBag("ads", 4), nn.Linear(4, 1), nn.Flatten(0))


@pytest.mark.parametrize(
    "create",
    [
        lambda optimizer: SparseEmbedding("ads", 4, optimizer=optimizer),
        lambda optimizer: SparseEmbeddingBag("ads", 4, optimizer=optimizer),
        lambda optimizer: TableSpec(name="ads", dim=4, optimizer=optimizer),
        lambda optimizer: zoo.Tables(optimizer=optimizer),
        lambda optimizer: zoo.SkipGram(4, optimizer=optimizer),
        lambda optimizer: EmbeddingBagCollection([CONFIG], optimizer=optimizer),
    ],
)
@pytest.mark.parametrize(
    ("optimizer", "found", "remedy"),
    [
        (torch.optim.Adam, "the class torch.optim.adam.Adam", "optim.Adam(lr=...)"),
        (optim.Adam, "the class sparsefleet.store.optimizers.Adam", "optim.Adam(lr=...)"),
        (
            torch.optim.AdamW([torch.zeros(1, requires_grad=True)]),
            "an instance of torch.optim.adamw.AdamW",
            "optim.AdamW(lr=...)",
        ),
        ("adam", "'adam'", "optim.Adam(lr=...)"),
        (torch.optim.LBFGS, "the class torch.optim.lbfgs.LBFGS", "optim.Adagrad(lr=...)"),
    ],
)
def test_a_wrong_optimizer_of_a_table_is_refused_at_once(
    create: Callable[[Any], object], optimizer: object, found: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        create(optimizer)
    assert f"got {found}; pass sparsefleet.{remedy}" in str(raised.value)


def test_the_class_of_a_store_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"got the class LocalStore: pass LocalStore\(\.\.\.\)"):
        SparseEmbedding("ads", 4, store=LocalStore)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("config", TrainerConfig, "config must be a TrainerConfig(...) or None, got the class"),
        ("config", {"quiet": True}, "config must be a TrainerConfig(...) or None, got {'quiet'"),
        (
            "schedule",
            torch.optim.lr_scheduler.StepLR,
            "schedule must be an instance, got the class StepLR: pass StepLR(optimizer, ...)",
        ),
        (
            "optimizer",
            torch.optim.Adam,
            "got the class Adam: pass Adam(model.parameters(), lr=...)",
        ),
        ("optimizer", optim.Adam, "got the class Adam: pass Adam(lr=...)"),
    ],
)
def test_a_class_in_place_of_an_instance_is_refused_by_the_trainer(
    argument: str, value: object, expected: str
) -> None:
    model = clicks()
    arguments: dict[str, Any] = {"optimizer": optim.Adam(lr=0.1), argument: value}
    with pytest.raises(ConfigError) as raised:
        Trainer(model, nn.BCEWithLogitsLoss(), **arguments)
    assert expected in str(raised.value)
