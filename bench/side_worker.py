"""The process of a side, except Paddle's: it answers its input lines one by one.

Prints `ready`, then answers each line with one line of JSON. `run BATCH EXAMPLES` trains on that
many examples, counted over all processes, and reports how many were its own, start and end on the
system's monotonic clock, and the CPU time. Other verbs are methods of the side that take a file:
`auc FILE` scores the arrays of an .npz file, with all processes of the side. Ends at the end of its
input.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


class ProductsSide:
    """A bound: `products(batch)` computes the products of each step, or more, and nothing else."""

    def __init__(self, products: Callable[[int], Any], options: argparse.Namespace) -> None:
        torch.set_num_threads(options.threads)
        self._make = products
        self._made: dict[int, Any] = {}

    def run(self, batch: int, num_batches: int) -> int:
        if batch not in self._made:
            self._made[batch] = self._make(batch)
        for _ in range(num_batches):
            self._made[batch].step()
        return batch * num_batches


def side_parser(about: str, sides: Mapping[str, Any], lr: float) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("side", choices=sides)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="that train, or torch's own")
    parser.add_argument("--mode", help="of our Trainer")
    parser.add_argument("--lr", type=float, default=lr, help="of layers and rows")
    parser.add_argument("--row-lr", type=float, help="of rows (default: as --lr)")
    parser.add_argument("--meeting", type=Path, help="a file of which the ranks of DDP know")
    parser.add_argument("--data", type=Path, help="train on this .npz file")
    parser.add_argument("--files", nargs="*", default=[], help="train on these MultiSlot files")
    return parser


def timed(side: Any, batch: int, num_batches: int) -> dict[str, float]:
    begin, cpu_begin_s = time.monotonic(), time.process_time()
    examples = side.run(batch, num_batches)
    end, cpu_s = time.monotonic(), time.process_time() - cpu_begin_s
    return {"examples": examples, "begin": begin, "end": end, "cpu_s": cpu_s}


def answer_lines(
    about: str,
    sides: Mapping[str, Callable[[argparse.Namespace], Any]],
    lr: float,
    parser: argparse.ArgumentParser | None = None,
) -> None:
    """Create the side that the command line names, then answer its input.

    parser: `side_parser`'s with options of the benchmark's own.
    """
    options = (parser or side_parser(about, sides, lr)).parse_args()
    torch.manual_seed(0)
    side = sides[options.side](options)
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "run":
            batch, examples = map(int, words)
            answer = timed(side, batch, max(1, examples // batch // options.processes))
        else:
            answer = {verb: getattr(side, verb)(Path(words[0]))}
        print(json.dumps(answer), flush=True)
