"""What metrics cost: CTR-DNN trained in one process that is scraped every second, or not.

Parts of one training take turns: in those with metrics, another process scrapes `/metrics` every
second and lookups are counted; in those without, nobody scrapes and counting is a function that
returns at once. Counters of the native core (atomic additions per request, norms of one row in 32)
run in both: they cannot be turned off.

The ratio of two neighboring parts is one measurement; the table has their median and its 95 %
interval, by resampling. CPU time per example is steadier on a busy machine than examples/s.

The last row adds up what is spent instead, as a share of one core that is busy training: CPU time
in the function that counts lookups, by a clock around each call that is included, and of one scrape
a second, from 50 while nothing trains. It hardly depends on what else the machine does.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ctr_batches import Batch, make_batches
from ctr_ours import FleetModel
from measure import argument_parser, judge, report, write_json
from sparsefleet import optim
from sparsefleet.monitor import LOOKUPS, serve_metrics
from sparsefleet.monitor.server_series import LookupCounts
from sparsefleet.train import Trainer, TrainerConfig

TARGET = 0.005
SCRAPER = """
import sys, threading, time, urllib.request
is_on = threading.Event()
def scrape():
    while True:
        is_on.wait()
        urllib.request.urlopen(sys.argv[1], timeout=60).read()
        time.sleep(1.0)
threading.Thread(target=scrape, daemon=True).start()
for line in sys.stdin:
    (is_on.set if line.strip() == "on" else is_on.clear)()
"""
SCRAPES = """
import sys, urllib.request
for _ in range(int(sys.argv[2])):
    urllib.request.urlopen(sys.argv[1], timeout=60).read()
"""
NUM_SCRAPES = 50


class Part(NamedTuple):
    """One stretch of training."""

    rate: float
    """Examples per second."""
    cpu_s: float
    """CPU seconds per example, of all threads of the process."""


class Sides:
    """A training whose metrics are on or off."""

    def __init__(self, batches: list[Batch], scraper: subprocess.Popen[str]) -> None:
        self._batches = batches
        self._scraper = scraper

    def run(self, trainer: Trainer, *, with_metrics: bool) -> Part:
        """Train on all batches once."""
        if with_metrics:
            LOOKUPS.__dict__.pop("add", None)
        else:
            LOOKUPS.__dict__["add"] = lambda *_: None
        assert self._scraper.stdin is not None
        print("on" if with_metrics else "off", file=self._scraper.stdin, flush=True)
        begun, used = time.perf_counter(), time.process_time()
        examples = trainer.fit(self._batches).last.examples
        seconds, used = time.perf_counter() - begun, time.process_time() - used
        return Part(examples / seconds, used / examples)

    def spent(self, trainer: Trainer, address: str) -> float:
        """Return the share of the time of one core that is spent for metrics."""
        counting_s = 0.0
        count = LookupCounts.add

        def timed(*words: Any) -> None:
            nonlocal counting_s
            begun = time.thread_time()
            count(LOOKUPS, *words)
            counting_s += time.thread_time() - begun

        LOOKUPS.__dict__["add"] = timed
        used = time.process_time()
        trainer.fit(self._batches)
        used = time.process_time() - used
        LOOKUPS.__dict__.pop("add")
        idle = time.process_time()
        subprocess.run([sys.executable, "-c", SCRAPES, address, str(NUM_SCRAPES)], check=True)
        scrape_s = (time.process_time() - idle) / NUM_SCRAPES
        return counting_s / used + scrape_s


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.set_defaults(repeats=20)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--examples", type=int, default=60_000, help="in each part")
    options = parser.parse_args()
    num_batches = 3 if options.quick else options.examples // options.batch
    batches = make_batches(num_batches, options.batch, seed=0)
    os.environ["SPARSEFLEET_METRICS"] = "127.0.0.1:0"
    torch.manual_seed(0)
    config = TrainerConfig(quiet=True)
    with Trainer(
        FleetModel(), nn.functional.cross_entropy, optim.SGD(lr=0.1), config=config
    ) as trainer:
        trainer.fit(batches)  # creates rows, and starts to serve
        address = f"http://{serve_metrics('worker', 0, '127.0.0.1:0').endpoint}/metrics"
        command = [sys.executable, "-c", SCRAPER, address]
        scraper = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        sides = Sides(batches, scraper)
        pairs = []
        try:
            for number in range(options.repeats):
                order = (True, False) if number % 2 else (False, True)
                parts = {side: sides.run(trainer, with_metrics=side) for side in order}
                pairs.append((parts[False], parts[True]))
        finally:
            scraper.kill()
            scraper.wait()
        spent = sides.spent(trainer, address)
    show(pairs, spent, options.json)


def show(pairs: Sequence[tuple[Part, Part]], spent: float, path: Path | None) -> None:
    costs = {
        "examples per second": [1 - on.rate / off.rate for off, on in pairs],
        "CPU time per example": [on.cpu_s / off.cpu_s - 1 for off, on in pairs],
    }
    rows, figures = [], {}
    for name, values in costs.items():
        low, middle, high = interval(values)
        figures[name] = {"median": middle, "low": low, "high": high, "values": values}
        rows.append([name, f"{middle:+.2%}", f"{low:+.2%} .. {high:+.2%}", str(len(values))])
    rows.append(["CPU time, added up", f"{spent:+.2%}", "", ""])
    off = statistics.median(part.rate for part, _ in pairs)
    report("What metrics cost", ["cost in", "median", "95 % interval", "pairs"], rows)
    judge(f"cost below {TARGET:.1%} (added up; {off:,.0f} examples/s without)", spent < TARGET)
    write_json(path, {"pairs": len(pairs), "rate_without": off, "cost": figures, "spent": spent})


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median between the bounds of its 95 % interval, by resampling."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], statistics.median(values), medians[1949]


if __name__ == "__main__":
    main()
