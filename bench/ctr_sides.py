"""One process of one side of bench/ctr_dnn.py; Paddle's is bench/paddle_ctr.py.

    python bench/ctr_sides.py SIDE --rank 0 --processes 2 --threads 1 [--mode sync]

bench/side_worker.py describes the requests and answers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ctr_examples import Examples, share_of
from ctr_network import LR, DenseStep, PlainModel, Products
from side_worker import ProductsSide, answer_lines


class TorchSide:
    """The loop a user writes without sparsefleet; under DDP with several processes."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.set_num_threads(options.threads)
        self._examples = Examples(options)
        self._plain = PlainModel(self._examples.num_counts, self._examples.num_slots)
        self._model: nn.Module = self._plain
        if options.processes > 1:
            torch.distributed.init_process_group(
                "gloo",
                init_method=f"file://{options.meeting}",
                rank=options.rank,
                world_size=options.processes,
            )
            self._model = nn.parallel.DistributedDataParallel(self._plain)
        rows = {"params": self._plain.embedding.parameters(), "lr": options.row_lr or options.lr}
        layers = {"params": self._plain.layers.parameters()}
        self._optimizer = torch.optim.SGD([rows, layers], lr=options.lr)

    def run(self, batch: int, num_batches: int) -> int:
        for counts, ids, clicks in self._examples.turn(batch, num_batches):
            loss = nn.functional.cross_entropy(self._model(counts, ids), clicks)
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
        return batch * num_batches

    def auc(self, path: Path) -> float:
        from sparsefleet.metrics import AUC  # not in a process whose memory is measured

        counts, ids, clicks = share_of(path, 0, 1)
        metric = AUC()
        with torch.no_grad():
            chances = torch.softmax(self._plain(counts, ids), dim=1)[:, 1]
        metric.update(chances.numpy(), clicks.numpy())
        return metric.compute()


def ours_side(options: argparse.Namespace) -> Any:
    """Imported only here, so that other sides do not pay for sparsefleet."""
    from ctr_ours import OursSide

    return OursSide(options)


SIDES: dict[str, Callable[[argparse.Namespace], Any]] = {
    "products": partial(ProductsSide, Products),
    "dense": partial(ProductsSide, DenseStep),
    "torch": TorchSide,
    "ours": ours_side,
}


if __name__ == "__main__":
    answer_lines(__doc__ or "", SIDES, LR)
