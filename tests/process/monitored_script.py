"""A job that trains until a file `stop` appears; some of it goes wrong when a file `fault` appears.

Faults, as words on the command line: slow-worker, nan, new-ids, hot-shard. Settings: wide-table has
rows that fill memory; run-ahead trains only dense layers, so that no pull of rows waits for the
servers, and lets any number of gradients wait to be sent.
"""

import os
import sys
import time

import numpy as np
import torch
from torch import nn

import sparsefleet
from sparsefleet import _core
from sparsefleet.modes import AsyncConfig
from sparsefleet.nn import SparseEmbeddingBag

words = set(sys.argv[1:])
is_wide = "wide-table" in words
hot_ids = np.array([key for key in range(400) if _core.owner_of(key, 2) == 0])
torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.ads = SparseEmbeddingBag("ads", 64 if is_wide else 8)
        self.clock = SparseEmbeddingBag("clock", 4)
        self.top = nn.Linear(68 if is_wide else 12, 1)

    def forward(self, ads, clock):
        time.sleep(0.005)  # leave some CPU time to other processes
        return self.top(torch.cat([self.ads(ads), self.clock(clock)], 1)).flatten()


class DenseModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.top = nn.Sequential(nn.Linear(5, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, ads, clock):
        time.sleep(0.005)
        return self.top(torch.cat([ads, clock], 1).float() / 50_000).flatten()


def batches():
    worker = int(os.environ.get("SPARSEFLEET_INDEX", "0"))
    random = np.random.default_rng(worker)
    number = 0
    faults = set()
    while not os.path.exists("stop"):
        number += 1
        if not faults and os.path.exists("fault"):
            faults = words
        ads = random.zipf(1.3, (64, 4)) % 50_000
        if is_wide:
            ads = random.integers(0, 300_000, (512, 4))
        if "hot-shard" in faults:
            ads = random.choice(hot_ids, (64, 4))
        clock = random.integers(0, 100, (len(ads), 1))
        if "new-ids" in faults:
            clock = np.arange(len(ads)).reshape(-1, 1) + 64 * (number + 10**7 * (worker + 1))
        if "slow-worker" in faults and worker == 1:
            time.sleep(0.05)
        labels = (ads[:, 0] % 2).astype(np.float32)
        if "nan" in faults and number % 3 == 0:
            labels[:] = np.nan
        yield (torch.from_numpy(ads), torch.from_numpy(clock)), torch.from_numpy(labels)


runs_ahead = "run-ahead" in words
model = DenseModel() if runs_ahead else Model()
with sparsefleet.Trainer(
    model,
    nn.BCEWithLogitsLoss(),
    torch.optim.Adagrad(model.parameters(), lr=0.05),
    mode=AsyncConfig(queue_size=100_000, max_merge=1) if runs_ahead else "async",
    config=sparsefleet.TrainerConfig(quiet=True, non_finite_loss="skip"),
    # A checkpoint waits until everything is sent.
    checkpoints=None
    if runs_ahead
    else sparsefleet.CheckpointConfig(directory="checkpoints", every_s=3.0),
) as trainer:
    trainer.fit(batches, epochs=1)
print("stopped as asked")
