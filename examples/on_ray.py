"""DeepFM on a Ray cluster: servers and workers as actors, records from Ray Data.

    pip install "sparsefleet[ray]"
    python examples/on_ray.py --mode sync --workers 2

If RAY_ADDRESS names no cluster, this script starts one on this machine. Ordinary scripts run on Ray
unchanged: `sparsefleet launch --on ray --servers 2 --workers 2 examples/deepfm.py`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray
import ray.train
import torch
from torch import nn

from click_log import features, generate
from sparsefleet import optim
from sparsefleet.ray import RayTrainer, Servers
from sparsefleet.train import Trainer, TrainerConfig
from sparsefleet.zoo import DeepFM, Tables

DIM = 8
BATCH = 500


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains DeepFM on Ray.")
    parser.add_argument("--mode", default="async", help="sync, half_async, async or hybrid")
    parser.add_argument("--rows", type=int, default=100_000, help="examples to train on")
    parser.add_argument("--servers", type=int, default=2, help="servers")
    parser.add_argument("--workers", type=int, default=2, help="workers")
    parser.add_argument("--storage", help="directory for the results (default: Ray's)")
    return parser.parse_args()


def click_dataset(rows: int, seed: int) -> Any:
    """Return the generated click log as a Ray dataset; real data would be read from files."""
    log = generate(rows, seed)

    def examples(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        at = batch["id"]
        return {"counts": log.counts[at], "keys": log.keys[at], "click": log.clicks[at]}

    return ray.data.range(rows).map_batches(examples)


def batches(name: str) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Yield this worker's part of a dataset as (inputs, clicks)."""
    shard = ray.train.get_dataset_shard(name)
    for batch in shard.iter_batches(batch_size=BATCH, batch_format="numpy"):
        yield {name: batch[name].copy() for name in ("counts", "keys")}, batch["click"].copy()


def train(config: dict[str, Any]) -> dict[str, float]:
    """Train on each worker; `RayTrainer` returns the result of worker 0."""
    torch.manual_seed(0)
    model = DeepFM(features(DIM), tables=Tables(optimizer=optim.Adagrad(lr=0.05)))
    with Trainer(
        model,
        nn.functional.binary_cross_entropy_with_logits,
        torch.optim.Adam(model.parameters(), lr=1e-3),
        mode=config["mode"],
        config=TrainerConfig(quiet=True),
    ) as trainer:
        trainer.fit(lambda: batches("train"))
        found = trainer.evaluate(lambda: batches("held_out"))
    ray.train.report({"auc": found["auc"], "log_loss": found["log_loss"]})
    return {"auc": found["auc"], "log_loss": found["log_loss"]}


def main() -> None:
    options = parse_arguments()
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default, 15, gets little CPU time
    ray.init(runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}}, log_to_driver=False)
    data = click_dataset(options.rows + options.rows // 5, seed=0)
    training, held_out = data.split_at_indices([options.rows])
    # These CPU shares leave one of two cores free, which Ray Data needs to generate the records.
    result = RayTrainer(
        train,
        servers=Servers(options.servers, num_cpus=0.25),
        train_loop_config={"mode": options.mode},
        scaling_config=ray.train.ScalingConfig(
            num_workers=options.workers, resources_per_worker={"CPU": 0.25}
        ),
        run_config=ray.train.RunConfig(
            storage_path=options.storage,
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
        datasets={"train": training, "held_out": held_out},
    ).fit()
    found = result.return_value
    print(f"held-out AUC {found['auc']:.4f}, log loss {found['log_loss']:.4f}")


if __name__ == "__main__":
    main()
