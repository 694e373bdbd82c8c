"""One process of one side of bench/ctr_dnn.py; that of Paddle is bench/paddle_ctr.py.

    python bench/ctr_sides.py SIDE --rank 0 --processes 2 --threads 1 [--mode sync]

Says `ready`, then answers each line it is sent with one line of JSON. `run BATCH EXAMPLES` trains
on that many examples, those of all processes counted, and tells how many were its own, begin and
end on the system's monotonic clock, and the CPU time taken; `auc FILE` scores the arrays of an .npz
file, with all processes of the side. Ends when its input does.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ctr_examples import Examples, share_of
from ctr_network import LR, PlainModel, Products


class ProductsSide:
    """The floor."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.set_num_threads(options.threads)
        self._products: dict[int, Products] = {}

    def run(self, batch: int, num_batches: int) -> int:
        if batch not in self._products:
            self._products[batch] = Products(batch)
        for _ in range(num_batches):
            self._products[batch].step()
        return batch * num_batches


class TorchSide:
    """The loop that one writes without us; with several processes, under DDP."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.set_num_threads(options.threads)
        self._examples = Examples(options)
        self._plain: nn.Module = PlainModel()
        self._model = self._plain
        if options.processes > 1:
            torch.distributed.init_process_group(
                "gloo",
                init_method=f"file://{options.meeting}",
                rank=options.rank,
                world_size=options.processes,
            )
            self._model = nn.parallel.DistributedDataParallel(self._plain)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=options.lr)

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
    """Imported for itself alone: other sides pay nothing for us."""
    from ctr_ours import OursSide

    return OursSide(options)


SIDES: dict[str, Callable[[argparse.Namespace], Any]] = {
    "products": ProductsSide,
    "torch": TorchSide,
    "ours": ours_side,
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="that train, or torch's own")
    parser.add_argument("--mode", help="of our Trainer")
    parser.add_argument("--lr", type=float, default=LR, help="of rows and layers")
    parser.add_argument("--meeting", type=Path, help="a file of which the ranks of DDP know")
    parser.add_argument("--data", type=Path, help="train on this .npz file")
    parser.add_argument("--files", nargs="*", default=[], help="train on these MultiSlot files")
    return parser.parse_args()


def timed(side: Any, batch: int, num_batches: int) -> dict[str, float]:
    begin, cpu_begin_s = time.monotonic(), time.process_time()
    examples = side.run(batch, num_batches)
    end, cpu_s = time.monotonic(), time.process_time() - cpu_begin_s
    return {"examples": examples, "begin": begin, "end": end, "cpu_s": cpu_s}


def main() -> None:
    options = parse_arguments()
    torch.manual_seed(0)
    side = SIDES[options.side](options)
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "auc":
            answer = {"auc": side.auc(Path(words[0]))}
        else:
            batch, examples = map(int, words)
            answer = timed(side, batch, max(1, examples // batch // options.processes))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
