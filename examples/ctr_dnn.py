"""CTR-DNN on a generated click log: train, evaluate, save, load again, predict.

    python examples/ctr_dnn.py                                                    # in one process
    sparsefleet launch --servers 2 --workers 2 --show worker.0 examples/ctr_dnn.py --mode async

Every worker trains on its part of the log. The held-out AUC covers all workers and is shown next to
the best AUC that any model can reach. `make demo` runs this script.

Letters: B examples, F categorical columns, D row width.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

from click_log import features, generate
from sparsefleet import Predictor, fleet, optim
from sparsefleet.metrics import AUC
from sparsefleet.train import Trainer, TrainerConfig
from sparsefleet.zoo import CtrDnn, Tables

DIM = 10


def make_model(mode: str | None) -> tuple[CtrDnn, torch.optim.Optimizer]:
    """Return the model and its dense optimizer; GEO needs plain SGD, which learns more slowly."""
    if mode == "geo":
        model = CtrDnn(features(DIM), tables=Tables(optimizer=optim.SGD(lr=1.0), seed=1))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)
    model = CtrDnn(features(DIM), tables=Tables(optimizer=optim.Adagrad(lr=0.05), seed=1))
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains CTR-DNN on a generated click log.")
    parser.add_argument("--mode", help="local, sync, half_async, async, geo or hybrid")
    parser.add_argument("--threads", type=int, default=1, help="training threads per worker")
    parser.add_argument("--rows", type=int, default=300_000, help="examples to train on")
    parser.add_argument("--epochs", type=int, default=1, help="epochs")
    parser.add_argument("--batch", type=int, default=500, help="examples per step")
    parser.add_argument("--seed", type=int, default=0, help="seed of the log and the dense layers")
    parser.add_argument("--out", type=Path, default=Path("build/demo/model"), help="model files")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    fleet.init()
    torch.manual_seed(options.seed)
    place = (fleet.worker_index(), fleet.worker_num())
    log = generate(options.rows + options.rows // 5, options.seed)
    held_out = log.part(options.rows, len(log))
    training = log.part(0, options.rows).share(*place).named_batches(options.batch)
    model, optimizer = make_model(options.mode)
    trainer = Trainer(
        model,
        nn.functional.binary_cross_entropy_with_logits,
        optimizer,
        mode=options.mode,
        threads=options.threads,
        config=TrainerConfig(quiet=options.quiet, log_interval_s=2.0),
    )
    with trainer:
        trainer.fit(training, epochs=options.epochs)
        found = trainer.evaluate(held_out.share(*place).named_batches(options.batch))["auc"]
        if fleet.is_first_worker():
            best = AUC()
            best.update(held_out.chances, held_out.clicks)
            print(f"held-out AUC {found:.4f} (chance 0.5, best possible {best.compute():.4f})")
            save_and_load_again(trainer, held_out.named_batches(options.batch), options)


def save_and_load_again(trainer: Trainer, batches: list, options: argparse.Namespace) -> None:
    """Raise SystemExit unless the saved model predicts the same as the trained one."""
    inputs = [batch[0] for batch in batches]
    predicted = trainer.predict(inputs, labelled=False).numpy()
    fleet.save_inference_model(options.out, inputs[0], targets=torch.sigmoid)
    predictor = Predictor(options.out)  # no servers, no training code
    again = np.concatenate([predictor.predict(batch) for batch in inputs])
    difference = np.abs(again - predicted).max()
    if difference > 1e-6:
        raise SystemExit(
            f"the model in {options.out} predicts differently, by up to {difference:.2g}"
        )
    print(f"saved to {options.out}, loaded again: all {len(predicted):,} predictions are the same")


if __name__ == "__main__":
    main()
