"""word2vec: skip-gram with negative sampling, a table for words and one for their contexts.

    python examples/word2vec.py
    sparsefleet launch --servers 2 --workers 2 examples/word2vec.py --mode geo

The text is generated: words 2k and 2k + 1 are twins that appear in the same contexts. After
training, the nearest word to nearly every word is its twin. The model computes its own loss.

Letters: B pairs of a word and a neighbor, K noise words for each, D row width.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from sparsefleet import fleet, optim
from sparsefleet.train import Trainer, TrainerConfig
from sparsefleet.zoo import SkipGram

DIM = 32
NUM_WORDS = 1000
COMPANY_SIZE = 12
NUM_NOISE = 5
BATCH = 500


def generate_pairs(num_batches: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield batches of words int64[B] and contexts int64[B, 1 + K]; twins share their contexts."""
    company = np.random.default_rng(0).integers(0, NUM_WORDS, (NUM_WORDS // 2, COMPANY_SIZE))
    rng = np.random.default_rng((1, seed))
    for _ in range(num_batches):
        words = rng.integers(0, NUM_WORDS, BATCH)
        contexts = rng.integers(0, NUM_WORDS, (BATCH, 1 + NUM_NOISE))
        contexts[:, 0] = company[words // 2, rng.integers(0, COMPANY_SIZE, BATCH)]
        yield words, contexts


@torch.no_grad()
def twins_found(model: SkipGram) -> tuple[float, float, float]:
    """Return the share of words whose nearest word is their twin, and the mean cosine of twins and
    of other words.
    """
    model.eval()
    words = torch.arange(NUM_WORDS)
    vectors = nn.functional.normalize(model.words(words))
    cosines = vectors @ vectors.T
    of_twins = cosines[words, words ^ 1].mean().item()
    of_others = (cosines.sum() - NUM_WORDS * (1 + of_twins)) / (NUM_WORDS * (NUM_WORDS - 2))
    nearest = cosines.fill_diagonal_(-1).argmax(dim=1)
    return (nearest == words ^ 1).float().mean().item(), of_twins, of_others.item()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains word2vec on generated text.")
    parser.add_argument("--mode", help="local, sync, half_async, async, geo or hybrid")
    parser.add_argument("--threads", type=int, default=1, help="training threads per worker")
    parser.add_argument("--pairs", type=int, default=400_000, help="pairs to train on")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    fleet.init()
    model = SkipGram(DIM, optimizer=optim.SGD(lr=BATCH * 0.05))  # the loss is a mean over the batch
    trainer = Trainer(
        model,
        None,
        optim.SGD(lr=1.0),
        mode=options.mode,
        threads=options.threads,
        config=TrainerConfig(quiet=options.quiet),
    )
    num_batches = options.pairs // BATCH // fleet.worker_num()
    with trainer:
        trainer.fit(generate_pairs(num_batches, seed=fleet.worker_index()))
        fleet.settle()  # waits until the tables contain the last updates of all workers
        if fleet.is_first_worker():
            found, of_twins, of_others = twins_found(model)
            print(f"cosine of twins {of_twins:.2f}, of other words {of_others:.2f}")
            print(f"the nearest word is the twin: {found:.1%} of {NUM_WORDS:,} words")


if __name__ == "__main__":
    main()
