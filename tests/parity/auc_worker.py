"""One process of tests/parity/test_auc_of_modes.py: trains, and prints the AUC of the fleet.

    python tests/parity/auc_worker.py DATA.npz --mode async --batch 500 --seed 0

DATA.npz has keys int64[N, F], values float32[N, C] and clicks float32[N], the last sixth of
which is held out. Its role in the job comes from the environment.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import nn

from sparsefleet import fleet, optim
from sparsefleet.data.features import Categorical, Features, Numeric
from sparsefleet.modes import GeoConfig
from sparsefleet.train import Trainer, TrainerConfig
from sparsefleet.zoo import CtrDnn, Tables

DIM = 10
WIDTH = 64
GEO_INTERVAL_STEPS = 5


class Model(CtrDnn):
    """CTR-DNN with narrower layers, since modes differ in how they treat tables."""

    def __init__(self, num_columns: int, num_values: int, optimizer: optim.Optimizer) -> None:
        keys = tuple(f"key{column}" for column in range(num_columns))
        values = tuple(f"value{column}" for column in range(num_values))
        features = [Categorical("keys", table="embedding", columns=keys, dim=DIM)]
        if values:  # Book-Crossing has none
            features.append(Numeric("values", columns=values))
        tables = Tables(optimizer=optimizer, seed=1)
        super().__init__(Features(*features), hidden=(WIDTH, WIDTH), tables=tables)

    def forward(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return super().forward(keys=keys, values=values)


def batches(columns: list[torch.Tensor], begin: int, end: int, size: int) -> list[tuple]:
    """Return this worker's part of examples [begin, end)."""
    index, count = fleet.worker_index(), fleet.worker_num()
    first, last = (begin + (end - begin) * i // count for i in (index, index + 1))
    return list(zip(*(column[first:last].split(size) for column in columns), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--mode", default="local")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--sgd", nargs=2, type=float, metavar=("SPARSE", "DENSE"))
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    fleet.init()
    with np.load(options.data) as data:
        columns = [torch.from_numpy(data[name]) for name in ("keys", "values", "clicks")]
    num_training = len(columns[0]) * 5 // 6
    shapes = (columns[0].shape[1], columns[1].shape[1])
    if options.sgd:
        model = Model(*shapes, optim.SGD(lr=options.sgd[0]))
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=options.sgd[1])
    else:
        model = Model(*shapes, optim.Adagrad(lr=0.05))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    geo = GeoConfig(push_interval_steps=GEO_INTERVAL_STEPS)
    mode = geo if options.mode == "geo" else options.mode
    loss = nn.functional.binary_cross_entropy_with_logits
    config = TrainerConfig(quiet=True)
    with Trainer(model, loss, optimizer, mode=mode, config=config) as trainer:
        trainer.fit(batches(columns, 0, num_training, options.batch), epochs=options.epochs)
        found = trainer.evaluate(batches(columns, num_training, len(columns[0]), 2000))
    print(f"AUC {found['auc']:.6f}")


if __name__ == "__main__":
    main()
