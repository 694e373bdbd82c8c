# ruff: noqa: ARG002
"""Trains in a fleet and logs what happens: lost_worker_script.py MODE OUT [CHECKPOINTS]

Worker `$LOST` kills itself in the second epoch, after its first batch. Every worker writes what its
callback sees to OUT/worker-<index>.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from sparsefleet import Trainer, TrainerConfig, fleet, optim
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.train import Callback, CheckpointConfig

mode, out, *directory = sys.argv[1:]
lost = int(os.environ["LOST"])
passes = 0


class Witness(Callback):
    """Appends what it sees to a file of this worker."""

    def on_worker_lost(self, trainer, rank):
        self._write(f"lost {rank}")

    def on_epoch_end(self, trainer, epoch):
        self._write(f"epoch {epoch.number}")

    def on_fit_end(self, trainer, epochs):
        self._write("end")

    def _write(self, line):
        with Path(out, f"worker-{fleet.worker_index()}").open("a") as file:
            file.write(line + "\n")


def batches():
    global passes
    passes += 1
    for number in range(8):
        if passes == 2 and number == 1 and fleet.worker_index() == lost:
            os.kill(os.getpid(), signal.SIGKILL)
        yield torch.randint(0, 40, (16, 2)), torch.rand(16)


class Batches:
    """Data with a length, so that it is known how much a lost worker has left over."""

    def __len__(self):
        return 8

    def __iter__(self):
        return batches()


model = nn.Sequential(SparseEmbeddingBag("ads", 4), nn.Linear(4, 1), nn.Flatten(0))
with Trainer(
    model,
    nn.BCEWithLogitsLoss(),
    optim.Adagrad(lr=0.1),
    mode=mode,
    config=TrainerConfig(quiet=True),
    checkpoints=CheckpointConfig(directory=directory[0]) if directory else None,
    callbacks=[Witness()],
) as trainer:
    trainer.fit(Batches(), epochs=2)
