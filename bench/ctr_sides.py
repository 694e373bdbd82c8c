"""One process of one side of bench/ctr_dnn.py; that of Paddle is bench/paddle_ctr.py.

    python bench/ctr_sides.py SIDE --rank 0 --processes 2 --threads 1 [--mode sync]

Says `ready`, then answers each line it is sent with one line of JSON. `run BATCH EXAMPLES` trains
on that many examples, those of all processes counted, and tells how many were its own, begin and
end on the system's monotonic clock, and the CPU time taken; `auc FILE` scores the arrays of an .npz
file, with all processes of the side. Ends when its input does.
"""

from __future__ import annotations

import argparse
import atexit
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ctr_batches import NUM_IDS, Batch, make_batches
from ctr_network import (
    LR,
    ONE_ID_SLOTS,
    FleetModel,
    FleetModelOfSlots,
    PlainModel,
    Products,
)
from sparsefleet import fluid
from sparsefleet.metrics import AUC
from sparsefleet.train import Trainer, TrainerConfig

NUM_DISTINCT_EXAMPLES = 60_000
FILLED_AT_ONCE = 50_000
SCORED_AT_ONCE = 2_000


class Examples:
    """What this process trains on, by batch size: drawn, or its share of an .npz file."""

    def __init__(self, options: argparse.Namespace) -> None:
        if options.data is None:
            [self._whole] = make_batches(1, NUM_DISTINCT_EXAMPLES, seed=options.rank)
        else:
            self._whole = share_of(options.data, options.rank, options.processes)

    def turn(self, batch: int, count: int) -> list[Batch]:
        """`count` whole batches, beginning again where they end."""
        split = zip(*(part.split(batch) for part in self._whole), strict=True)
        batches = list(split)[: len(self._whole[0]) // batch]
        return (batches * (count // len(batches) + 1))[:count]


def share_of(path: Path, rank: int, processes: int) -> Batch:
    with np.load(path) as arrays:
        counts, ids, clicks = (
            torch.from_numpy(arrays[name][rank::processes]) for name in ("counts", "ids", "clicks")
        )
    return counts, ids, clicks


def as_slots(batch: Batch) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """As `ONE_ID_SLOTS` are read from a file."""
    counts, ids, clicks = batch
    names = [slot.name for slot in ONE_ID_SLOTS[1:-1]]
    return {"dense": counts, **dict(zip(names, ids.T, strict=True))}, clicks


class ProductsSide:
    """The floor."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.set_num_threads(options.threads)
        self._products: dict[int, Products] = {}

    def run(self, batch: int, num_batches: int) -> int:
        products = self._products.setdefault(batch, Products(batch))
        for _ in range(num_batches):
            products.step()
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
        counts, ids, clicks = share_of(path, 0, 1)
        metric = AUC()
        with torch.no_grad():
            chances = torch.softmax(self._plain(counts, ids), dim=1)[:, 1]
        metric.update(chances.numpy(), clicks.numpy())
        return metric.compute()


class OursSide:
    """Our Trainer, as the environment says: in this process, or as one worker of a job."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        from_files = bool(options.files)
        model = FleetModelOfSlots(options.lr) if from_files else FleetModel(options.lr)
        self._trainer = Trainer(
            model,
            nn.functional.cross_entropy,
            torch.optim.SGD(model.parameters(), lr=options.lr),
            mode=options.mode,
            threads=options.threads,
            config=TrainerConfig(quiet=True),
        )
        self._examples = Examples(options)
        first = self._examples.turn(100, 2)
        self._fit([as_slots(batch) for batch in first] if from_files else first)  # connects
        if options.rank == 0:
            self._fill_table()
        atexit.register(self._trainer.close)

    def run(self, batch: int, num_batches: int) -> int:
        if not self._options.files:
            return self._fit(self._examples.turn(batch, num_batches))
        return self._fit(self._dataset(batch).batches(label="label"))

    def auc(self, path: Path) -> float:
        place = (self._options.rank, self._options.processes)
        parts = (part.split(SCORED_AT_ONCE) for part in share_of(path, *place))
        return self._trainer.evaluate(list(zip(*parts, strict=True)))["auc"]

    def _fit(self, data: Any) -> int:
        return self._trainer.fit(data).examples

    def _dataset(self, batch: int) -> Any:
        made = fluid.DatasetFactory().create_dataset("QueueDataset")
        made.set_use_var(list(ONE_ID_SLOTS))
        made.set_batch_size(batch)
        made.set_thread(self._options.threads)
        made.set_filelist(self._options.files)
        return made

    def _fill_table(self) -> None:
        """Other sides have all rows from the start; ours would be born at their first use."""
        for begin in range(0, NUM_IDS, FILLED_AT_ONCE):
            keys = np.arange(begin, min(begin + FILLED_AT_ONCE, NUM_IDS))
            self._trainer.distributed.store.pull("ids", keys)


SIDES: dict[str, Callable[[argparse.Namespace], Any]] = {
    "products": ProductsSide,
    "torch": TorchSide,
    "ours": OursSide,
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
