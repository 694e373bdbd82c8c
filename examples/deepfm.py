"""DeepFM on a generated click log: a weight per key, products of pairs, and layers on top.

    python examples/deepfm.py
    sparsefleet launch --servers 2 --workers 2 examples/deepfm.py --mode sync

Two tables, of width 1 and 8, are looked up with the same keys; a batch still costs one request per
server.

Letters: B examples, F categorical columns, D row width.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from click_log import NUM_COLUMNS, NUM_COUNTS, generate
from sparsefleet import fleet, optim
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag
from sparsefleet.store import Constant
from sparsefleet.train import Trainer, TrainerConfig

DIM = 8
BATCH = 500


class DeepFM(nn.Module):
    """The sum of three logits: first order, pairs (the FM), and the deep part."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        super().__init__()
        self.weights = SparseEmbeddingBag(
            "first_order", 1, mode="sum", initializer=Constant(0.0), optimizer=optimizer
        )
        self.vectors = SparseEmbedding("vectors", DIM, optimizer=optimizer)
        self.of_counts = nn.Linear(NUM_COUNTS, 1)
        self.deep = nn.Sequential(
            nn.Linear(NUM_COLUMNS * DIM + NUM_COUNTS, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )

    def forward(self, counts: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """counts: float32[B, 13], keys: int64[B, F] -> logits float32[B]."""
        vectors = self.vectors(keys)
        # All pairs at once: the square of the sum contains each pair twice, plus the squares.
        pairs = (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1) / 2
        first = self.weights(keys).squeeze(1) + self.of_counts(counts).squeeze(1)
        deep = self.deep(torch.cat([vectors.flatten(1), counts], dim=1)).squeeze(1)
        return first + pairs + deep


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains DeepFM on a generated click log.")
    parser.add_argument("--mode", help="local, sync, half_async, async or hybrid")
    parser.add_argument("--threads", type=int, default=1, help="training threads per worker")
    parser.add_argument("--rows", type=int, default=100_000, help="examples to train on")
    parser.add_argument("--epochs", type=int, default=1, help="epochs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the log and the dense layers")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    fleet.init()
    torch.manual_seed(options.seed)
    place = (fleet.worker_index(), fleet.worker_num())
    log = generate(options.rows + options.rows // 5, options.seed)
    training = log.part(0, options.rows).share(*place).batches(BATCH)
    held_out = log.part(options.rows, len(log)).share(*place).batches(BATCH)
    model = DeepFM(optim.Adagrad(lr=0.05))
    trainer = Trainer(
        model,
        nn.functional.binary_cross_entropy_with_logits,
        torch.optim.Adam(model.parameters(), lr=1e-3),
        mode=options.mode,
        threads=options.threads,
        config=TrainerConfig(quiet=options.quiet),
    )
    with trainer:
        trainer.fit(training, epochs=options.epochs)
        found = trainer.evaluate(held_out)
        if fleet.is_first_worker():
            print(f"held-out AUC {found['auc']:.4f}, log loss {found['log_loss']:.4f}")


if __name__ == "__main__":
    main()
