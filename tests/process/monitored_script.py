"""A job that trains until a file `stop` appears; some of it may be wrong on purpose.

Faults, as words on the command line: slow-worker, slow-reader, nan, new-ids.
"""

import os
import sys
import time

import numpy as np
import torch
from torch import nn

import sparsefleet
from sparsefleet.nn import SparseEmbeddingBag

faults = set(sys.argv[1:])
torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.ads = SparseEmbeddingBag("ads", 8)
        self.clock = SparseEmbeddingBag("clock", 4)
        self.top = nn.Linear(12, 1)

    def forward(self, ads, clock):
        time.sleep(0.005)  # leave a busy machine alone
        return self.top(torch.cat([self.ads(ads), self.clock(clock)], 1)).flatten()


def batches():
    worker = int(os.environ.get("SPARSEFLEET_INDEX", "0"))
    random = np.random.default_rng(worker)
    number = 0
    while not os.path.exists("stop"):
        number += 1
        ads = random.zipf(1.3, (64, 4)) % 50_000
        clock = random.integers(0, 100, (64, 1))
        if "new-ids" in faults:
            clock = np.arange(64).reshape(64, 1) + 64 * (number + 10**7 * (worker + 1))
        if "slow-worker" in faults and worker == 1:
            time.sleep(0.05)
        if "slow-reader" in faults:
            time.sleep(0.02)
        labels = (ads[:, 0] % 2).astype(np.float32)
        if "nan" in faults and number % 3 == 0:
            labels[:] = np.nan
        yield (torch.from_numpy(ads), torch.from_numpy(clock)), torch.from_numpy(labels)


model = Model()
with sparsefleet.Trainer(
    model,
    nn.BCEWithLogitsLoss(),
    torch.optim.Adagrad(model.parameters(), lr=0.05),
    mode="async",
    config=sparsefleet.TrainerConfig(quiet=True, non_finite_loss="skip"),
    checkpoints=sparsefleet.CheckpointConfig(directory="checkpoints", every_s=3.0),
) as trainer:
    trainer.fit(batches, epochs=1)
print("stopped as asked")
