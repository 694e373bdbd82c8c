"""Train a small convolutional net on digits, on several workers without servers.

    python examples/mnist_collective.py                                          # one process
    sparsefleet launch --servers 0 --workers 2 --show worker.0 \\
        examples/mnist_collective.py --mode local_sgd --data ../shared/data/mnist
    torchrun --nproc-per-node 2 examples/mnist_collective.py --mode bfloat16

Every worker trains on its part of the images, and all keep the same parameters. --data is a
folder with the four IDX files of MNIST; without it, noisy digits are generated.

Letters: B images in a batch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

from digits import Pictures, draw, read
from sparsefleet import fleet
from sparsefleet.collective import AmpConfig, CollectiveStrategy, LocalSgdConfig
from sparsefleet.metrics import Accuracy
from sparsefleet.train import Trainer, TrainerConfig

STRATEGIES = {
    "sync": CollectiveStrategy(),
    "local_sgd": CollectiveStrategy(local_sgd=LocalSgdConfig(warm_steps=100, steps=4)),
    "bfloat16": CollectiveStrategy(amp=AmpConfig(dtype="bfloat16")),
}


class LeNet(nn.Module):
    """A net of two convolutions and two linear layers, which converts images to float32."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures = nn.Sequential(
            nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.classes = nn.Sequential(nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """pictures: uint8[B, 28, 28] -> logits float32[B, 10]."""
        return self.classes(self.pictures(pictures.unsqueeze(1).float() / 255.0))


def batches(pictures: Pictures, size: int, *, seed: int | None = None) -> list[Pictures]:
    """Return batches of this worker's images, shuffled if a seed is given."""
    order = torch.arange(len(pictures[1]))
    if seed is not None:
        order = torch.randperm(len(order), generator=torch.Generator().manual_seed(seed))
    own = order[fleet.worker_index() :: fleet.worker_num()]
    return [(pictures[0][part], pictures[1][part]) for part in own.split(size)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small net on digits, collectively.")
    parser.add_argument("--mode", default="sync", choices=STRATEGIES, help="how workers train")
    parser.add_argument("--data", type=Path, help="folder with the IDX files of MNIST")
    parser.add_argument("--pictures", type=int, default=6000, help="digits drawn without --data")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="images per step and worker")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    options = parser.parse_args()
    fleet.init(is_collective=True)
    torch.manual_seed(1)
    if options.data is None:
        training, test = draw(options.pictures, seed=1), draw(options.pictures // 5, seed=2)
    else:
        training, test = read(options.data, "train"), read(options.data, "t10k")
    model = LeNet()
    trainer = Trainer(
        model,
        nn.CrossEntropyLoss(),
        torch.optim.Adam(model.parameters(), lr=1e-3),
        mode="collective",
        strategy=STRATEGIES[options.mode],
        metrics={"accuracy": Accuracy(threshold=None)},
        config=TrainerConfig(quiet=options.quiet),
    )
    epochs = iter(range(options.epochs))
    with trainer:
        trainer.fit(lambda: batches(training, options.batch, seed=next(epochs)), options.epochs)
        figures = trainer.evaluate(batches(test, 500))
        if fleet.is_first_worker():
            print(f"test accuracy {100 * figures['accuracy']:.2f}%")


if __name__ == "__main__":
    main()
