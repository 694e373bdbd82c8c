"""A custom training loop: no Trainer, only `with fleet.step(batch)`.

    python examples/custom_loop.py
    sparsefleet launch --servers 2 --workers 2 examples/custom_loop.py --mode async

Servers hold the table; workers train a logistic regression on their part of a generated click log,
with one weight per key, and merge their AUC by hand.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from click_log import NUM_COUNTS, ClickLog, generate
from sparsefleet import fleet, optim
from sparsefleet.metrics import AUC
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.store import Constant

BATCH = 500


class LogisticRegression(nn.Module):
    """A model with one weight per key, looked up and summed, and one weight per count."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = SparseEmbeddingBag(
            "weights", 1, mode="sum", initializer=Constant(0.0), optimizer=optim.Adagrad(lr=0.1)
        )
        self.of_counts = nn.Linear(NUM_COUNTS, 1)

    def forward(self, counts: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """counts: float32[B, 13], keys: int64[B, F] -> logits float32[B]."""
        return (self.weights(keys) + self.of_counts(counts)).squeeze(1)


def tensors(log: ClickLog) -> list[list[torch.Tensor]]:
    return [[torch.from_numpy(column) for column in batch] for batch in log.batches(BATCH)]


def train(model: nn.Module, log: ClickLog, epochs: int) -> None:
    """Train; each step fetches its rows when it begins and sends its gradients when it ends."""
    for epoch in range(epochs):
        for number, (counts, keys, clicks) in enumerate(tensors(log)):
            with fleet.step((counts, keys)):
                logits = model(counts, keys)
                loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks)
                loss.backward()
            if number % 50 == 0:
                print(f"epoch {epoch + 1}, batch {number}: loss {loss.item():.4f}")


def evaluate(model: nn.Module, log: ClickLog) -> float:
    """Return the AUC over the examples of all workers, on every worker. Creates no rows."""
    auc = AUC()
    model.eval()
    with torch.no_grad():
        for counts, keys, clicks in tensors(log):
            auc.update(model(counts, keys).sigmoid(), clicks)
    merged = AUC()
    for state in fleet.all_gather(auc.state()):
        merged.merge(AUC.from_state(state))
    return merged.compute()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a logistic regression with a custom loop.")
    parser.add_argument("--mode", help="local, sync, half_async, async or hybrid")
    parser.add_argument("--rows", type=int, default=100_000, help="examples to train on")
    parser.add_argument("--epochs", type=int, default=1, help="epochs")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    fleet.init()
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()  # until the workers are done
        return
    place = (fleet.worker_index(), fleet.worker_num())
    log = generate(options.rows + options.rows // 5)
    torch.manual_seed(0)  # the same initial weights in every run
    model = LogisticRegression()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fleet.distribute(model, optimizer, options.mode)
    fleet.init_worker()
    train(model, log.part(0, options.rows).share(*place), options.epochs)
    fleet.settle()  # applies the gradients of all workers and fetches the parameters
    auc = evaluate(model, log.part(options.rows, len(log)).share(*place))
    if fleet.is_first_worker():
        print(f"held-out AUC {auc:.4f}")
    fleet.stop_worker()


if __name__ == "__main__":
    main()
