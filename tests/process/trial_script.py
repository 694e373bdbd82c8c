"""A script for `sparsefleet plan --try`: endless data, checkpoints, an evaluation, a save.

Words on the command line: adagrad (in place of SGD), no-trainer, failing.
"""

import sys

import numpy as np
import torch
from torch import nn

import sparsefleet
from sparsefleet import fleet
from sparsefleet.nn import SparseEmbeddingBag

words = set(sys.argv[1:])
torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.ads = SparseEmbeddingBag("ads", 4)
        self.top = nn.Linear(4, 1)

    def forward(self, ads):
        return self.top(self.ads(ads)).flatten()


def batches(seed):
    random = np.random.default_rng(seed)
    while True:
        ads = random.zipf(1.3, (64, 3)) % 2_000
        labels = (ads[:, 0] % 2).astype(np.float32)
        yield torch.from_numpy(ads), torch.from_numpy(labels)


def held_out():
    endless = batches(99)
    return [next(endless) for _ in range(10)]


if "no-trainer" in words:
    print("nothing to train")
    sys.exit(0)
if "failing" in words:
    raise RuntimeError("the data is missing")
model = Model()
kind = torch.optim.Adagrad if "adagrad" in words else torch.optim.SGD
with sparsefleet.Trainer(
    model,
    nn.BCEWithLogitsLoss(),
    kind(model.parameters(), lr=0.5),
    mode="half_async",
    config=sparsefleet.TrainerConfig(quiet=True),
    checkpoints=sparsefleet.CheckpointConfig(directory="checkpoints", every_s=0.1),
    resume="auto",
) as trainer:
    trainer.fit(lambda: batches(fleet.worker_index()), epochs=3)
    print(trainer.evaluate(held_out()))
    trainer.save("saved")
    print("never reached in a trial")
