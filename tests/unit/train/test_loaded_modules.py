"""Modules that a training process must not load: each costs megabytes and time in every worker."""

from __future__ import annotations

import subprocess
import sys

# Each is loaded only by what needs it: columnar files, remote paths, a displayed summary, a torch
# optimizer (which imports the compiler, which imports sympy), exports, Redis.
NOT_FOR_TRAINING = [
    "fsspec",
    "matplotlib",
    "mpmath",
    "onnx",
    "onnxruntime",
    "pandas",
    "pyarrow",
    "redis",
    "rich",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "zstandard",
]
# `sparsefleet server`: no part of it needs torch.
NOT_FOR_SERVERS = [*NOT_FOR_TRAINING, "torch"]

SCRIPT = f"""
import sys

def require_absent(names, after):
    loaded = [name for name in names if name in sys.modules]
    assert not loaded, f"{{after}} loads {{loaded}}: import them in the function that uses them"

import sparsefleet.server
import sparsefleet.cli.main
require_absent({NOT_FOR_SERVERS}, "a server")

import torch
names = [name for name in {NOT_FOR_TRAINING} if name not in sys.modules]  # some torch brings sympy
from torch import nn
from sparsefleet import data, optim
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.train import Trainer, TrainerConfig

for mode in ("local", "async", "geo"):
    model = nn.Sequential(SparseEmbeddingBag("ads", 4), nn.Linear(4, 1), nn.Flatten(0))
    batch = (torch.tensor([[1, 2], [3, 4]]), torch.tensor([1.0, 0.0]))
    config = TrainerConfig(quiet=True)
    loss = nn.BCEWithLogitsLoss()
    with Trainer(model, loss, optim.SGD(lr=0.1), mode=mode, config=config) as trainer:
        trainer.fit([batch] * 3)
        trainer.evaluate([batch])
require_absent(names, "a Trainer")
"""


def test_training_and_servers_load_nothing_that_they_do_not_use() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
