"""DeepFM on a generated click log: a weight per key, products of pairs, and layers on top.

    python examples/deepfm.py
    sparsefleet launch --servers 2 --workers 2 examples/deepfm.py --mode sync

The model comes from sparsefleet.zoo. It looks up the same keys in two tables, of width 1 and 8; a
batch still costs one request per server.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from click_log import features, generate
from sparsefleet import fleet, optim
from sparsefleet.train import Trainer, TrainerConfig
from sparsefleet.zoo import DeepFM, Tables

DIM = 8
BATCH = 500


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
    training = log.part(0, options.rows).share(*place).named_batches(BATCH)
    held_out = log.part(options.rows, len(log)).share(*place).named_batches(BATCH)
    model = DeepFM(features(DIM), tables=Tables(optimizer=optim.Adagrad(lr=0.05)))
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
