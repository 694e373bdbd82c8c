"""The benchmarked CTR-DNN and its batches: 26 slots, width 10, layers 400-400-400-2.

Letters: B examples, F slots, D row width.
"""

from __future__ import annotations

import numpy as np
import torch

NUM_COUNTS = 13
NUM_SLOTS = 26
DIM = 10
NUM_IDS = 1_000_001
WIDTHS = (NUM_COUNTS + NUM_SLOTS * DIM, 400, 400, 400, 2)
"""The widths of the input and of each layer's output."""

# Slots have from a handful to hundreds of thousands of distinct values, as in Criteo's data.
_VOCABULARY_SIZES = np.geomspace(4, 400_000, NUM_SLOTS).astype(np.int64)
_ZIPF_EXPONENT = 1.1
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Counts float32[B, 13], ids int64[B, F] below NUM_IDS, clicks int64[B]."""


def make_batches(num_batches: int, batch_size: int, seed: int) -> list[Batch]:
    """Return batches in memory. The ids of each slot follow Zipf's law; all slots share one id
    range.
    """
    rng = np.random.default_rng(seed)
    num_examples = num_batches * batch_size
    columns = [_draw_ids(rng, slot, num_examples) for slot in range(NUM_SLOTS)]
    ids = torch.from_numpy(np.stack(columns, axis=1))
    counts = torch.from_numpy(rng.random((num_examples, NUM_COUNTS), dtype=np.float32))
    clicks = torch.from_numpy((rng.random(num_examples) < 0.25).astype(np.int64))
    split = (part.split(batch_size) for part in (counts, ids, clicks))
    return list(zip(*split, strict=True))


def _draw_ids(rng: np.random.Generator, slot: int, num_examples: int) -> np.ndarray:
    size = _VOCABULARY_SIZES[slot]
    shares = np.cumsum(np.arange(1, size + 1, dtype=np.float64) ** -_ZIPF_EXPONENT)
    ranks = np.searchsorted(shares, rng.random(num_examples) * shares[-1])
    mixed = (ranks.astype(np.uint64) + np.uint64(slot << 32)) * _MULTIPLIER
    return ((mixed >> np.uint64(20)) % np.uint64(NUM_IDS)).astype(np.int64)
