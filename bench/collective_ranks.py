"""One rank of all sides of bench/collective.py.

    python bench/collective_ranks.py --rank 0 --size 2 --per-node 1 --meeting HOST:PORT [--counts]

Prints `ready`, then answers each input line with one line of JSON: `run SIDE MODEL STEPS` trains
that side's own model for that many steps, and reports start and end on the system's monotonic
clock, the CPU time and, with --counts, the bytes sent through each network device of its namespace.
Sides and models are created on first use, by all ranks alike. Ends at the end of its input.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from collective_sides import SIDES
from ctr_batches import WIDTHS
from ctr_network import layers
from sparsefleet.collective import CollectiveStrategy, World
from sparsefleet.collective.training import CollectiveTraining

NUM_BATCHES = 8
LR = 0.01
TIMEOUT_S = 60.0
END_S = 20.0


def digits_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(784, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 10)
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int, int]] = {
    "mnist": (digits_network, 784, 10, 64),
    "ctr": (layers, WIDTHS[0], 2, 100),
}
"""Its constructor, input width, classes, and examples per batch of one rank."""


class Work(ABC):
    """A model of one side with its own batches."""

    def __init__(self, network: str, rank: int) -> None:
        make, width, num_classes, batch = NETWORKS[network]
        torch.manual_seed(0)
        self.model = make()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)
        torch.manual_seed(1 + rank)
        xs = torch.randn(NUM_BATCHES, batch, width)
        self.batches = list(zip(xs, torch.randint(num_classes, (NUM_BATCHES, batch)), strict=True))

    def turn(self, num_steps: int) -> Any:
        return itertools.islice(itertools.cycle(self.batches), num_steps)

    @abstractmethod
    def run(self, num_steps: int) -> None:
        """Run steps."""


class DdpWork(Work):
    """The loop a user writes without sparsefleet, with torch's default settings."""

    def __init__(self, network: str, world: World) -> None:
        super().__init__(network, world.rank)
        group = world.new_group(range(world.size))
        self._wrapped = nn.parallel.DistributedDataParallel(self.model, process_group=group)

    def run(self, num_steps: int) -> None:
        for x, y in self.turn(num_steps):
            loss = nn.functional.cross_entropy(self._wrapped(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


class OurWork(Work):
    """The same loop with sparsefleet."""

    def __init__(self, network: str, world: World, strategy: CollectiveStrategy) -> None:
        super().__init__(network, world.rank)
        self._training = CollectiveTraining(
            self.model.named_parameters(), self.optimizer.step, world, strategy
        )

    def run(self, num_steps: int) -> None:
        for x, y in self.turn(num_steps):
            with self._training.forward():
                loss = nn.functional.cross_entropy(self.model(x), y)
            self._training.backward(loss)
            self._training.step()


def make_work(side: str, network: str, world: World) -> Work:
    strategy = SIDES[side].strategy
    if strategy is None:
        return DdpWork(network, world)
    return OurWork(network, world, strategy)


def sent_bytes() -> dict[str, int]:
    """Bytes sent, by device of this process's network namespace."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    devices = (line.partition(":") for line in lines)
    return {name.strip(): int(counts.split()[8]) for name, _, counts in devices}


def timed(work: Work, num_steps: int, world: World, counts: bool) -> dict[str, Any]:
    world.barrier("the begin of a section")
    before = sent_bytes() if counts else {}
    begin, cpu_begin_s = time.monotonic(), time.process_time()
    work.run(num_steps)
    end, cpu_s = time.monotonic(), time.process_time() - cpu_begin_s
    world.barrier("the end of a section")  # by then, data that others still wait for has been sent
    sent = {name: count - before[name] for name, count in sent_bytes().items() if name in before}
    return {"begin": begin, "end": end, "cpu_s": cpu_s, "sent": sent}


def read_lines() -> Iterator[str]:
    """Read commands from the input. Some time after its end this process exits too: the parent may
    be gone, and with it the network needed to say goodbye to the others.
    """
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        lines.put(None)
        time.sleep(END_S)
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    while (line := lines.get()) is not None:
        yield line


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--per-node", type=int, required=True, help="ranks of a node")
    parser.add_argument("--meeting", required=True, help="HOST:PORT at which rank 0 listens")
    parser.add_argument("--counts", action="store_true", help="report what its namespace sent")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    made: dict[tuple[str, str], Work] = {}
    with World.join(
        rank=options.rank,
        size=options.size,
        ranks_per_node=options.per_node,
        meeting_point=options.meeting,
        timeout_s=TIMEOUT_S,
    ) as world:
        print("ready", flush=True)
        for line in read_lines():
            _, side, network, num_steps = line.split()
            if (side, network) not in made:
                made[side, network] = make_work(side, network, world)
            answer = timed(made[side, network], int(num_steps), world, options.counts)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
