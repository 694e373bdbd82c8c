"""A training that is killed and started again, run as a job by test_resumed_job.py.

resume_script.py DIRECTORY [stop]: trains with dropout and Adam, saving to DIRECTORY/series and at
the end to DIRECTORY/end. With `stop`, worker 0 stops at a batch in the second epoch, once there is
a checkpoint, leaves its pid in DIRECTORY/stopped, and waits to be killed.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tests.support.saved_training import DropoutClicks, click_batches
from torch import nn

from sparsefleet import Trainer, TrainerConfig, fleet
from sparsefleet.checkpoint import latest
from sparsefleet.train import CheckpointConfig

directory, stops = Path(sys.argv[1]), "stop" in sys.argv[2:]
fleet.init()
torch.manual_seed(fleet.worker_index())
own = click_batches(9 if fleet.is_first_worker() else 13, seed=fleet.worker_index())


class Data:
    """The batches of this worker; a pass that is to be stopped ends in a wait."""

    passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        for number, batch in enumerate(own):
            if stops and fleet.is_first_worker() and self.passes == 2 and number == 6:
                while latest(str(directory / "series")) is None:
                    signal.sigtimedwait([], 0.05)
                (directory / "pid").write_text(str(os.getpid()))
                (directory / "pid").rename(directory / "stopped")
                signal.pause()
            yield batch


model = DropoutClicks()
trainer = Trainer(
    model,
    nn.BCEWithLogitsLoss(),
    torch.optim.Adam(model.parameters(), lr=0.01),
    mode="sync",
    config=TrainerConfig(quiet=True),
    checkpoints=CheckpointConfig(directory=directory / "series", job="resumed", every_steps=4),
    resume="auto",
)
with trainer:
    trainer.fit(Data(), epochs=3)
    trainer.save(directory / "end")
