"""The training data of one process of a side of bench/ctr_dnn.py."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from ctr_batches import Batch, make_batches

NUM_DISTINCT_EXAMPLES = 60_000


class Examples:
    """Return this process's examples by batch size: generated, or its share of an .npz file."""

    def __init__(self, options: argparse.Namespace) -> None:
        if options.data is None:
            [self._whole] = make_batches(1, NUM_DISTINCT_EXAMPLES, seed=options.rank)
        else:
            self._whole = share_of(options.data, options.rank, options.processes)

    @property
    def num_counts(self) -> int:
        """The number of numeric inputs."""
        return self._whole[0].shape[1]

    @property
    def num_slots(self) -> int:
        return self._whole[1].shape[1]

    def turn(self, batch: int, count: int) -> list[Batch]:
        """Return `count` complete batches, starting over at the end."""
        split = zip(*(part.split(batch) for part in self._whole), strict=True)
        batches = list(split)[: len(self._whole[0]) // batch]
        return (batches * (count // len(batches) + 1))[:count]


def share_of(path: Path, rank: int, processes: int) -> Batch:
    with np.load(path) as arrays:
        counts, ids, clicks = (
            torch.from_numpy(arrays[name][rank::processes]) for name in ("counts", "ids", "clicks")
        )
    return counts, ids, clicks
