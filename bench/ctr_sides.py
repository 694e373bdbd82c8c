"""One process of one side of bench/ctr_dnn.py.

    python bench/ctr_sides.py SIDE --batch 1000 --examples 60000 --rank 0 --processes 2 --threads 1

Says `ready`, then runs a section for each line it is sent and answers with one line of JSON:
examples, begin and end on the system's monotonic clock, and the CPU time taken. Ends when its
input does.
"""

from __future__ import annotations

import argparse
import atexit
import itertools
import json
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from ctr_batches import DIM, NUM_IDS, WIDTHS, Batch, make_batches
from sparsefleet import optim
from sparsefleet.nn import SparseEmbedding
from sparsefleet.train import Trainer, TrainerConfig

LR = 0.1
NUM_DISTINCT_EXAMPLES = 60_000


class Products:
    """The matrix products of one step, nothing else: what no training can be faster than."""

    def __init__(self, batch_size: int) -> None:
        pairs = list(itertools.pairwise(WIDTHS))
        self.weights = [torch.randn(wide, narrow).T.contiguous() * 0.05 for wide, narrow in pairs]
        self.weight_gradients = [torch.empty_like(weight) for weight in self.weights]
        self.values = [torch.randn(batch_size, width) for width in WIDTHS]
        self.value_gradients = [torch.randn(batch_size, width) for width in WIDTHS]

    def step(self) -> None:
        for x, weight, y in zip(self.values, self.weights, self.values[1:], strict=False):
            torch.mm(x, weight.T, out=y)
        for i in reversed(range(len(self.weights))):
            torch.mm(self.value_gradients[i + 1].T, self.values[i], out=self.weight_gradients[i])
            torch.mm(self.value_gradients[i + 1], self.weights[i], out=self.value_gradients[i])


def products_side(options: argparse.Namespace) -> Callable[[int], None]:
    products = Products(options.batch)

    def run(num_batches: int) -> None:
        for _ in range(num_batches):
            products.step()

    return run


def layers() -> nn.Sequential:
    """Three layers of 400 with ReLU, and the two logits."""
    made: list[nn.Module] = []
    for wide, narrow in itertools.pairwise(WIDTHS):
        made += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*made[:-1])


class PlainModel(nn.Module):
    """What one writes without us."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_IDS, DIM, sparse=True)
        self.layers = layers()

    def forward(self, counts: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([self.embedding(ids).flatten(1), counts], dim=1))


def torch_side(options: argparse.Namespace) -> Callable[[int], None]:
    model = PlainModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    batches = batches_of(options)

    def run(num_batches: int) -> None:
        for counts, ids, clicks in turn(batches, num_batches):
            loss = nn.functional.cross_entropy(model(counts, ids), clicks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


class FleetModel(nn.Module):
    """The same with its rows in a table."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = SparseEmbedding("ids", DIM, optimizer=optim.SGD(lr=LR))
        self.layers = layers()

    def forward(self, counts: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([self.embedding(ids).flatten(1), counts], dim=1))


def fleet_side(options: argparse.Namespace) -> Callable[[int], None]:
    """Our Trainer, as the environment says: in this process, or as one worker of a job."""
    model = FleetModel()
    trainer = Trainer(
        model,
        nn.functional.cross_entropy,
        torch.optim.SGD(model.parameters(), lr=LR),
        mode=options.mode,
        threads=options.threads,
        config=TrainerConfig(quiet=True),
    )
    batches = batches_of(options)

    def run(num_batches: int) -> None:
        trainer.fit(turn(batches, num_batches))

    run(2)  # connects and starts
    atexit.register(trainer.close)
    return run


def batches_of(options: argparse.Namespace) -> list[Batch]:
    return make_batches(NUM_DISTINCT_EXAMPLES // options.batch, options.batch, seed=options.rank)


def turn(batches: list[Batch], count: int) -> list[Batch]:
    """`count` batches, beginning again where they end."""
    return (batches * (count // len(batches) + 1))[:count]


SIDES = {"products": products_side, "torch": torch_side, "local": fleet_side, "fleet": fleet_side}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--examples", type=int, required=True, help="of a section, all processes")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="that train, or torch's own")
    parser.add_argument("--mode", help="of the fleet")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.side in ("products", "torch"):
        torch.set_num_threads(options.threads)
    run = SIDES[options.side](options)
    num_batches = options.examples // options.batch // options.processes
    print("ready", flush=True)
    for _ in sys.stdin:
        begin, cpu = time.monotonic(), time.process_time()
        run(num_batches)
        answer = {
            "examples": num_batches * options.batch,
            "begin": begin,
            "end": time.monotonic(),
            "cpu_s": time.process_time() - cpu,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
