"""DLRM by our Trainer beside TorchRec with FBGEMM's fused CPU tables: examples per second.

    python bench/torchrec_dlrm.py [--quick] [--json FILE]

Both train TorchRec's DLRM network with plain SGD, from the same batches in memory, in one process
with one thread of torch. TorchRec's side is DistributedModelParallel with one rank on gloo, its
fused kernel and its optimizer in backward. docs/coming_from_torchrec.md says how to install it;
without it only ours is measured. Sides take turns, and the medians are compared.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from measure import argument_parser, console, machine, report, write_json
from sparsefleet import Trainer, TrainerConfig, optim, torchrec_like

NUM_FEATURES, NUM_IDS, DIM, NUM_DENSE = 26, 100_000, 16, 13
DENSE_LAYERS, OVER_LAYERS = [512, 256, DIM], [512, 512, 256, 1]
LR = 0.05
NAMES = [f"C{at}" for at in range(NUM_FEATURES)]
Side = Callable[[int], None]
"""Trains this many batches."""


def make_batches(kind: Any, size: int, count: int) -> list[tuple[Any, Any, torch.Tensor]]:
    """One id per feature and example, by Zipf's law, as in Criteo's log."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        ids = (rng.zipf(1.2, NUM_FEATURES * size) % NUM_IDS).astype(np.int64)
        lengths = torch.ones(NUM_FEATURES * size, dtype=torch.int64)
        keyed = kind.from_lengths_sync(NAMES, torch.from_numpy(ids), lengths)
        dense = torch.from_numpy(rng.standard_normal((size, NUM_DENSE), np.float32))
        made.append((dense, keyed, torch.from_numpy((ids[:size] % 2).astype(np.float32))))
    return made


def tables(kind: Any) -> list[Any]:
    return [
        kind(name=f"t_{name}", embedding_dim=DIM, num_embeddings=NUM_IDS, feature_names=[name])
        for name in NAMES
    ]


def our_side(size: int, count: int) -> Side:
    bags = torchrec_like.EmbeddingBagCollection(tables(torchrec_like.EmbeddingBagConfig))
    model = torchrec_like.DLRM(bags, NUM_DENSE, DENSE_LAYERS, OVER_LAYERS)
    batches = [
        ((dense, ids), clicks.unsqueeze(1))
        for dense, ids, clicks in make_batches(torchrec_like.KeyedJaggedTensor, size, count)
    ]
    loss = nn.functional.binary_cross_entropy_with_logits
    trainer = Trainer(model, loss, optim.SGD(lr=LR), config=TrainerConfig(quiet=True))

    def train(number: int) -> None:
        trainer.fit([batches[at % count] for at in range(number)])

    return train


def their_side(size: int, count: int) -> Side:
    """Raises ImportError without TorchRec."""
    import torchrec
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.models.dlrm import DLRM

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    bags = torchrec.EmbeddingBagCollection(
        tables=tables(torchrec.EmbeddingBagConfig), device=torch.device("meta")
    )
    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LR}
    model = DistributedModelParallel(
        module=DLRM(bags, NUM_DENSE, DENSE_LAYERS, OVER_LAYERS),
        device=torch.device("cpu"),
        sharders=[EmbeddingBagCollectionSharder(fused_params=fused)],
    )
    dense_parameters = [p for name, p in model.named_parameters() if "embedding_bags" not in name]
    optimizer = torch.optim.SGD(dense_parameters, lr=LR)
    batches = make_batches(torchrec.KeyedJaggedTensor, size, count)

    def train(number: int) -> None:
        for at in range(number):
            dense, ids, clicks = batches[at % count]
            optimizer.zero_grad(set_to_none=True)
            logits = model(dense, ids).squeeze(1)
            nn.functional.binary_cross_entropy_with_logits(logits, clicks).backward()
            optimizer.step()

    return train


def measure(sides: dict[str, Side], size: int, count: int, repeats: int) -> dict[str, list[float]]:
    """Examples per second, turn by turn."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side(count)
    for _ in range(repeats):
        for name, side in sides.items():
            begin = time.perf_counter()
            side(count)
            found[name].append(size * count / (time.perf_counter() - begin))
    return found


def main() -> None:
    options = argument_parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    console.print(f"[bold]DLRM beside TorchRec[/bold]. {machine()}")
    figures: dict[str, Any] = {}
    rows = []
    for size in (100, 1000):
        count = (4 if options.quick else 40) * (5 if size == 100 else 1)
        sides = {"ours": our_side(size, count)}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                sides["torchrec"] = their_side(size, count)
        except ImportError as error:
            console.print(f"  without torchrec: {error}", markup=False)
        rates = measure(sides, size, count, 2 if options.quick else 5)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        medians = {name: statistics.median(found) for name, found in rates.items()}
        ratio = medians["ours"] / medians["torchrec"] if "torchrec" in medians else float("nan")
        figures[str(size)] = {"examples_per_s": rates, "ratio": ratio}
        shown = [f"{medians.get(name, float('nan')):,.0f}" for name in ("ours", "torchrec")]
        rows.append([str(size), *shown, f"{ratio:.2f}x"])
    report("examples per second, medians", ["batch", "ours", "torchrec", "ratio"], rows)
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
