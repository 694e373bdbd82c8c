"""CTR-DNN on a generated click log: sparse rows in a store, the rest in torch.

Trains, shows the AUC on held-out examples beside the best there can be, saves the
model and checks that it predicts the same when loaded again. `make demo` runs it.

Letters: B examples, F categorical columns, U unique keys of a batch, D row width.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from auc import auc
from click_log import NUM_COLUMNS, NUM_COUNTS, ClickLog, generate
from progress_display import ProgressDisplay
from sparsefleet import LocalStore, RemoteStore, SparseFleetError, Store, TableSpec, optim

DIM = 10
BATCH = 1000
TABLE = TableSpec(name="embedding", dim=DIM, optimizer=optim.Adagrad(lr=0.05), seed=1)


class CtrDnn(nn.Module):
    """Rows of all columns and the counts, through three layers of 400, to one logit."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(NUM_COLUMNS * DIM + NUM_COUNTS, 400),
            nn.ReLU(),
            nn.Linear(400, 400),
            nn.ReLU(),
            nn.Linear(400, 400),
            nn.ReLU(),
            nn.Linear(400, 1),
        )

    def forward(self, embedded: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """embedded: float32[B, F, D], counts: float32[B, 13] -> logits float32[B]."""
        return self.layers(torch.cat([embedded.flatten(1), counts], dim=1)).squeeze(1)


def train(model: CtrDnn, store: Store, log: ClickLog, epochs: int, quiet: bool) -> None:
    """One pull and one push a batch; dense parameters step in torch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with ProgressDisplay(len(log) * epochs, quiet=quiet) as display:
        for begin in list(range(0, len(log), BATCH)) * epochs:
            batch = log.part(begin, begin + BATCH)
            keys, places = torch.from_numpy(batch.keys).unique(return_inverse=True)
            rows = torch.from_numpy(store.pull(TABLE.name, keys)).requires_grad_()
            logits = model(nn.functional.embedding(places, rows), torch.from_numpy(batch.counts))
            clicks = torch.from_numpy(batch.clicks)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            store.push(TABLE.name, keys, rows.grad, unique=True)
            if begin % (20 * BATCH) == 0:
                display.set_rows(num_rows(store))
            display.update(batch.clicks, logits.detach().numpy(), loss.item())


@torch.no_grad()
def predict(model: CtrDnn, store: Store, log: ClickLog) -> np.ndarray:
    """Logits of all examples; keys never trained read as zeros and make no row."""
    logits = []
    for begin in range(0, len(log), BATCH):
        batch = log.part(begin, begin + BATCH)
        keys, places = torch.from_numpy(batch.keys).unique(return_inverse=True)
        rows = torch.from_numpy(store.pull(TABLE.name, keys, train=False))
        logits.append(
            model(nn.functional.embedding(places, rows), torch.from_numpy(batch.counts)).numpy()
        )
    return np.concatenate(logits)


def num_rows(store: Store) -> int:
    return int(sum(server[f"table.{TABLE.name}.rows"] for server in store.stats()))


def save_model(model: CtrDnn, store: Store, directory: Path) -> None:
    shutil.rmtree(directory / "tables", ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    store.save(directory / "tables")
    save_file(model.state_dict(), directory / "dense.safetensors")


def load_model(store: Store, directory: Path) -> CtrDnn:
    model = CtrDnn()
    model.load_state_dict(load_file(directory / "dense.safetensors"))
    store.define(TABLE)
    store.load(directory / "tables")
    return model


def open_store(endpoints: Sequence[str], transport: str) -> Store:
    if endpoints:
        return RemoteStore(endpoints, name="worker-0", transport=transport)
    return LocalStore()


def run(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    num_held_out = max(options.rows // 5, 1)
    begun = time.monotonic()
    log = generate(options.rows + num_held_out, options.seed)
    training, held_out = log.part(0, options.rows), log.part(options.rows, len(log))
    print(
        f"generated {len(log):,} examples in {time.monotonic() - begun:.1f} s: "
        f"{len(training):,} to train on, {len(held_out):,} held out"
    )
    model = CtrDnn()
    with open_store(options.servers, options.transport) as store:
        store.define(TABLE)
        begun = time.monotonic()
        train(model, store, training, options.epochs, options.quiet)
        took_s = time.monotonic() - begun
        print(
            f"trained {options.epochs * len(training):,} examples in {took_s:.1f} s "
            f"({options.epochs * len(training) / took_s:,.0f} a second), {num_rows(store):,} rows"
        )
        logits = predict(model, store, held_out)
        found, best = auc(held_out.clicks, logits), auc(held_out.clicks, held_out.chances)
        print(f"held-out AUC {found:.4f} (chance 0.5, best possible {best:.4f})")
        save_model(model, store, options.out)
    with open_store(options.servers, options.transport) as store:
        again = predict(load_model(store, options.out), store, held_out)
    if not np.array_equal(again, logits):
        raise SystemExit(f"the model in {options.out} does not predict what it did before")
    print(f"saved to {options.out}, loaded again: all {len(again):,} predictions are the same")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Trains CTR-DNN on a generated click log.")
    parser.add_argument("--rows", type=int, default=300_000, help="examples to train on")
    parser.add_argument("--epochs", type=int, default=1, help="passes over them")
    parser.add_argument("--seed", type=int, default=0, help="of the log and the dense layers")
    parser.add_argument(
        "--servers",
        nargs="+",
        default=[],
        metavar="HOST:PORT",
        help="keep the table on these servers (they must share this disk) instead of here",
    )
    parser.add_argument("--transport", choices=("tls", "plain"), default="tls")
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo/model"), help="where the model goes"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress display")
    options = parser.parse_args(arguments)
    if options.rows < 1 or options.epochs < 1:
        parser.error("--rows and --epochs must be at least 1")
    try:
        run(options)
    except SparseFleetError as error:
        sys.exit(f"ctr_dnn: error: {error}")


if __name__ == "__main__":
    main()
