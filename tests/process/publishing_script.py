"""A job of servers and workers that trains and publishes; a script for `sparsefleet launch`.

publishing_script.py EXPORT TARGET
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.saved_training import DropoutClicks, click_batches
from torch import nn

from sparsefleet import fleet, optim
from sparsefleet.train import PublishConfig, Trainer, TrainerConfig


def main() -> None:
    export, target = sys.argv[1:]
    fleet.init()
    with Trainer(
        DropoutClicks(),
        nn.BCEWithLogitsLoss(),
        optim.SGD(lr=0.05),
        mode="async",
        config=TrainerConfig(quiet=True),
        publish=PublishConfig(model=export, target=target, every_steps=5),
    ) as trainer:
        trainer.fit(click_batches(30, seed=fleet.worker_index()))
        trainer.distributed.settle()
        found = trainer.predict(click_batches(1, seed=5)).tolist()
        if fleet.is_first_worker():
            Path("predictions.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
