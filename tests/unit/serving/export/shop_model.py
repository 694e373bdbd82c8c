"""A model with one of everything that can be exported, trained a little, and its export."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag, apply_gradients, bind
from sparsefleet.optim import SGD
from sparsefleet.serving.export import ExportManifest, save_inference_model
from sparsefleet.store import LocalStore, Normal

OFFSET = 1000
"""The offset that the model adds to item ids before it looks them up."""


class Shop(nn.Module):
    """Ids that are computed, ragged bags of both kinds, padding, unknown ids, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        wide = Normal(0.0, 0.5)
        self.items = SparseEmbedding("items", 4, initializer=wide)
        self.tags = SparseEmbeddingBag(
            "tags", 3, padding_idx=0, mode="sqrtn", unknown="initial", initializer=wide, seed=9
        )
        self.shops = SparseEmbeddingBag("shops/all", 2, include_last_offset=True, initializer=wide)
        self.users = SparseEmbedding("users", 2, initializer=wide)
        self.hidden = nn.Linear(3 * 4 + 3 + 2 + 2, 5)
        self.score = nn.Linear(5, 1)
        self.other = nn.Linear(5 + 2, 2)

    def forward(
        self,
        counts: Tensor,
        items: Tensor,
        tags: tuple[Tensor, Tensor],
        shops: tuple[Tensor, Tensor],
        user: Tensor,
        label: Tensor,
    ) -> dict[str, Tensor]:
        found = self.items(items + OFFSET).flatten(1)
        wide = torch.cat([found, self.tags(tags), self.shops(shops), counts], 1)
        hidden = self.hidden(wide).relu()
        chance = self.score(hidden).squeeze(1).sigmoid()
        other = self.other(torch.cat([hidden, self.users(user)], 1))
        return {"chance": chance, "other": other, "loss": (chance - label).square().mean()}


def batch(size: int = 4, seed: int = 0) -> dict[str, Any]:
    """Return a batch of NumPy arrays for `Shop`; some ids were not trained."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, (2, size))
    starts = np.concatenate([np.zeros((2, 1), np.int64), lengths.cumsum(1)], 1)
    return {
        "counts": rng.random((size, 2), np.float32),
        "items": rng.integers(0, 30, (size, 3)),
        "tags": (rng.integers(0, 30, starts[0, -1]), starts[0, :-1].copy()),
        "shops": (rng.integers(0, 30, starts[1, -1]), starts[1]),
        "user": rng.integers(0, 30, size),
        "label": rng.random(size, np.float32),
    }


def needed(inputs: dict[str, Any], *dropped: str) -> dict[str, Any]:
    """Without the inputs that pruning drops."""
    return {name: value for name, value in inputs.items() if name not in dropped}


def as_tensors(inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(map(torch.as_tensor, value))
        if isinstance(value, tuple)
        else torch.as_tensor(value)
        for name, value in inputs.items()
    }


@functools.cache
def trained_shop() -> tuple[Shop, LocalStore]:
    torch.manual_seed(0)
    model, store = Shop(), LocalStore()
    bind(model, store, SGD(lr=0.5))
    for step in range(3):
        outputs = model(**as_tensors(batch(8, seed=step)))
        (outputs["loss"] + outputs["other"].sum()).backward()
        apply_gradients(model)
    return model, store


def chances(inputs: dict[str, Any]) -> np.ndarray:
    """Return the predictions of the trained model itself."""
    model, _ = trained_shop()
    model.eval()
    with torch.no_grad():
        found: np.ndarray = model(**as_tensors(inputs))["chance"].numpy()
    model.train()
    return found


@functools.cache
def exported_shop() -> tuple[Path, ExportManifest]:
    """Return the export of its "chance", with ONNX; do not modify it."""
    directory = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    model, _ = trained_shop()
    manifest = save_inference_model(
        directory, model, batch(), targets="chance", golden=batch(9, seed=5), onnx=True
    )
    return Path(directory), manifest
