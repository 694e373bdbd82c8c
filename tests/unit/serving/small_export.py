"""A small model with two tables, and its exports in every row format."""

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

from sparsefleet.nn import SparseEmbedding, bind
from sparsefleet.optim import SGD
from sparsefleet.serving.export import (
    ExportManifest,
    RowFormat,
    read_manifest,
    save_inference_model,
)
from sparsefleet.store import LocalStore, Normal

ROWS = 50
"""Keys of each table: 0 to 49."""


class Pairs(nn.Module):
    """ad, user int64[B] -> float32[B]; unknown users get the initial values of their rows."""

    def __init__(self) -> None:
        super().__init__()
        self.ads = SparseEmbedding("ads", 4, initializer=Normal(0.0, 1.0))
        self.users = SparseEmbedding("users", 3, initializer=Normal(0.0, 1.0), unknown="initial")
        self.head = nn.Linear(7, 1)

    def forward(self, ad: Tensor, user: Tensor) -> Tensor:
        return self.head(torch.cat([self.ads(ad), self.users(user)], 1)).squeeze(1)


@functools.cache
def exported_pairs(rows: RowFormat = "float32", seed: int = 0) -> tuple[Path, ExportManifest]:
    """Return a read-only export. Another seed gives another version of the model, with other
    values.
    """
    directory = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    torch.manual_seed(seed)
    model, store = Pairs(), LocalStore()
    bind(model, store, SGD(lr=1.0))
    rng = np.random.default_rng(seed)
    for table, dim in (("ads", 4), ("users", 3)):
        keys = np.arange(ROWS)
        store.pull(table, keys)
        store.push(table, keys, rng.normal(size=(ROWS, dim)).astype(np.float32))
    example = {"ad": torch.arange(4), "user": torch.arange(4)}
    save_inference_model(directory, model, example, store=store, rows=rows, onnx=False)
    return directory, read_manifest(directory)


def pairs(ads: Any, users: Any) -> dict[str, np.ndarray]:
    return {"ad": np.asarray(ads, np.int64), "user": np.asarray(users, np.int64)}
