"""The same tables and batches for TorchRec's classes and for ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

DIM = 8
NUM_IDS = 50
FEATURES = ["user", "ads", "site", "tags"]
SIZE = 6


def configs(kind: Any, pooling: Any) -> list[Any]:
    """Three tables, one of which two features share."""
    made = []
    for name, features, how in (
        ("people", ["user"], pooling.SUM),
        ("goods", ["ads", "tags"], pooling.MEAN),
        ("sites", ["site"], pooling.SUM),
    ):
        made.append(
            kind(
                name=name,
                embedding_dim=DIM,
                num_embeddings=NUM_IDS,
                feature_names=features,
                pooling=how,
            )
        )
    return made


def keyed(kind: Any, seed: int = 0, *, weighted: bool = False) -> Any:
    """Ids of all features; some bags are empty, and so is all of one feature for odd seeds."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (len(FEATURES), SIZE), generator=generator)
    if seed % 2:
        lengths[3] = 0
    num = int(lengths.sum())
    values = torch.randint(NUM_IDS, (num,), generator=generator)
    weights = torch.rand(num, generator=generator) if weighted else None
    return kind.from_lengths_sync(FEATURES, values, lengths.flatten(), weights)


def dense(seed: int = 0) -> Tensor:
    return torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(seed))
