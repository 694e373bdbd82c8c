"""Incremental training: each day continues from the previous day's save.

    python examples/incremental/train_day.py --day 1 --out days/1
    sparsefleet launch --servers 2 --workers 2 examples/incremental/train_day.py \
        --day 1 --out days/1
    sparsefleet launch --servers 3 --workers 2 examples/incremental/train_day.py \
        --day 2 --start days/1 --out days/2

Worker 0 saves at the end of a day. The next day's servers start from that directory, even if
their number has changed; new ids get their rows on first use. Without --start, a day starts from
scratch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

from sparsefleet import Trainer, TrainerConfig, fleet, optim
from sparsefleet.zoo import CtrDnn, Tables

sys.path.insert(0, str(Path(__file__).parents[1]))
from click_log import ClickLog, features, generate

BATCH = 500
DAYS = 7


def make_model() -> CtrDnn:
    return CtrDnn(features(dim=8), hidden=(16,), tables=Tables(optimizer=optim.Adagrad(lr=0.05)))


def log_of_day(day: int, rows: int) -> tuple[ClickLog, ClickLog]:
    """Return a day's training examples, and the examples after them (a fifth) for evaluation."""
    log = generate(DAYS * rows * 6 // 5)
    begin = (day - 1) * rows * 6 // 5
    return log.part(begin, begin + rows), log.part(begin + rows, begin + rows * 6 // 5)


def num_rows(trainer: Trainer) -> int:
    return int(trainer.distributed.store.info("embedding").size)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains one day of a click log.")
    parser.add_argument("--day", type=int, default=1, choices=range(1, DAYS + 1))
    parser.add_argument("--start", help="the previous day's save")
    parser.add_argument("--out", help="where to save")
    parser.add_argument("--mode", help="sync, half_async, async or hybrid")
    parser.add_argument("--rows", type=int, default=50_000, help="examples per day")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    fleet.init()
    if fleet.is_server():
        fleet.init_server(options.start)
        fleet.run_server()  # until the workers are done
        return
    place = (fleet.worker_index(), fleet.worker_num())
    today, judged = log_of_day(options.day, options.rows)
    torch.manual_seed(0)  # so that days differ only in their starting point
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss, config = nn.BCEWithLogitsLoss(), TrainerConfig(quiet=True)
    with Trainer(model, loss, optimizer, mode=options.mode, config=config) as trainer:
        if options.start and not fleet.server_num():
            trainer.load(options.start)  # without servers, the trainer itself loads the save
        before = trainer.evaluate(judged.share(*place).named_batches(BATCH))
        known = num_rows(trainer)
        fleet.barrier_worker()  # before any rows are created
        trainer.fit(today.share(*place).named_batches(BATCH))
        after = trainer.evaluate(judged.share(*place).named_batches(BATCH))
        if fleet.is_first_worker():
            print(f"day {options.day}: AUC before {before['auc']:.4f}, after {after['auc']:.4f}")
            print(f"rows at the start {known}, at the end {num_rows(trainer)}")
            if options.out:
                fleet.save_persistables(options.out)
                print(f"saved to {options.out}")


if __name__ == "__main__":
    main()
