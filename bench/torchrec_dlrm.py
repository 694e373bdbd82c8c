"""DLRM trained by our Trainer and by TorchRec with FBGEMM's fused CPU tables: examples per second.

    python bench/torchrec_dlrm.py [--quick] [--json FILE]

All sides train TorchRec's DLRM network with plain SGD from the same batches in memory: with one
id per feature, as in Criteo's log, and with several. On one core, each has one thread. On two,
ours has two training threads; TorchRec has two ranks on gloo or one rank with two threads of
torch, and is judged by the better. TorchRec's tables are sharded by DistributedModelParallel, with
its fused kernel and its optimizer in backward. docs/coming_from_torchrec.md says how to install
it. Beside them runs the network alone, on rows that are there already and with our matrix products:
what remains if tables cost nothing, so the limit of both. Sides take turns, and the medians are
compared.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
import warnings
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from measure import argument_parser, console, machine, report, take_turns, write_json
from side_processes import Side, SideProcess
from side_worker import answer_lines, side_parser
from sparsefleet import Trainer, TrainerConfig, optim, torchrec_like
from sparsefleet.nn.fast_layers import speed_up_layers

NUM_FEATURES, NUM_IDS, DIM, NUM_DENSE = 26, 100_000, 16, 13
DENSE_LAYERS, OVER_LAYERS = [512, 256, DIM], [512, 512, 256, 1]
LR = 0.05
NAN = float("nan")
NUM_BATCHES = 40
"""The number of different batches, which are reused."""
NAMES = [f"C{at}" for at in range(NUM_FEATURES)]


def make_batches(kind: Any, size: int, ids_per_feature: int) -> list[tuple[Any, Any, torch.Tensor]]:
    """Ids by Zipf's law; from 1 to nearly twice `ids_per_feature` of them per feature."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(NUM_BATCHES):
        lengths = rng.integers(1, 2 * ids_per_feature, NUM_FEATURES * size)
        ids = (rng.zipf(1.2, int(lengths.sum())) % NUM_IDS).astype(np.int64)
        keyed = kind.from_lengths_sync(NAMES, torch.from_numpy(ids), torch.from_numpy(lengths))
        dense = torch.from_numpy(rng.standard_normal((size, NUM_DENSE), np.float32))
        made.append((dense, keyed, torch.from_numpy((ids[:size] % 2).astype(np.float32))))
    return made


def tables(kind: Any) -> list[Any]:
    return [
        kind(name=f"t_{name}", embedding_dim=DIM, num_embeddings=NUM_IDS, feature_names=[name])
        for name in NAMES
    ]


class OurSide:
    """Training threads of one process that share rows and parameters."""

    def __init__(self, options: Namespace) -> None:
        bags = torchrec_like.EmbeddingBagCollection(tables(torchrec_like.EmbeddingBagConfig))
        model = torchrec_like.DLRM(bags, NUM_DENSE, DENSE_LAYERS, OVER_LAYERS)
        self._trainer = Trainer(
            model,
            nn.functional.binary_cross_entropy_with_logits,
            optim.SGD(lr=LR),
            threads=options.threads,
            config=TrainerConfig(quiet=True),
        )
        self._batches = [
            ((dense, ids), clicks.unsqueeze(1))
            for dense, ids, clicks in make_batches(
                torchrec_like.KeyedJaggedTensor, options.size, options.ids
            )
        ]

    def run(self, batch: int, num_batches: int) -> int:
        self._trainer.fit([self._batches[at % NUM_BATCHES] for at in range(num_batches)])
        return batch * num_batches


class TorchRecSide:
    """One rank; ranks share the tables and average the gradients of the layers."""

    def __init__(self, options: Namespace) -> None:
        warnings.simplefilter("ignore")
        import torchrec
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from torchrec.distributed import DistributedModelParallel
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.models.dlrm import DLRM

        torch.set_num_threads(options.threads)
        torch.distributed.init_process_group(
            "gloo",
            rank=options.rank,
            world_size=options.processes,
            store=torch.distributed.FileStore(str(options.meeting), options.processes),
        )
        bags = torchrec.EmbeddingBagCollection(
            tables=tables(torchrec.EmbeddingBagConfig), device=torch.device("meta")
        )
        fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LR}
        self._model = DistributedModelParallel(
            module=DLRM(bags, NUM_DENSE, DENSE_LAYERS, OVER_LAYERS),
            device=torch.device("cpu"),
            sharders=[EmbeddingBagCollectionSharder(fused_params=fused)],
        )
        layers = [p for name, p in self._model.named_parameters() if "embedding_bags" not in name]
        self._optimizer = torch.optim.SGD(layers, lr=LR)
        self._batches = make_batches(torchrec.KeyedJaggedTensor, options.size, options.ids)

    def run(self, batch: int, num_batches: int) -> int:
        for at in range(num_batches):
            dense, ids, clicks = self._batches[at % NUM_BATCHES]
            self._optimizer.zero_grad(set_to_none=True)
            logits = self._model(dense, ids).squeeze(1)
            nn.functional.binary_cross_entropy_with_logits(logits, clicks).backward()
            self._optimizer.step()
        return batch * num_batches


class NetworkSide:
    """The layers alone: forward, backward also to the rows, and SGD of the layers."""

    def __init__(self, options: Namespace) -> None:
        torch.set_num_threads(options.threads)
        bags = torchrec_like.EmbeddingBagCollection(tables(torchrec_like.EmbeddingBagConfig))
        self._model = torchrec_like.DLRM(bags, NUM_DENSE, DENSE_LAYERS, OVER_LAYERS)
        speed_up_layers(self._model)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LR)
        self._dense = torch.randn(options.size, NUM_DENSE)
        self._rows = torch.randn(options.size, NUM_FEATURES, DIM, requires_grad=True)
        self._clicks = (torch.rand(options.size, 1) < 0.5).float()

    def run(self, batch: int, num_batches: int) -> int:
        model = self._model
        for _ in range(num_batches):
            self._optimizer.zero_grad(set_to_none=True)
            self._rows.grad = None
            logits = model.over_arch(model.inter_arch(model.dense_arch(self._dense), self._rows))
            nn.functional.binary_cross_entropy_with_logits(logits, self._clicks).backward()
            self._optimizer.step()
        return batch * num_batches


SIDES = {"ours": OurSide, "torchrec": TorchRecSide, "network": NetworkSide}
WORKLOADS = [(1, 32), (1, 100), (1, 1000), (10, 32), (10, 100), (10, 1000)]
"""Ids per feature and batch."""
CORES: dict[str, list[tuple[str, int, int]]] = {
    "one core": [("ours", 1, 1), ("torchrec", 1, 1), ("network", 1, 1)],
    "two cores": [("ours", 1, 2), ("torchrec", 2, 1), ("torchrec", 1, 2), ("network", 2, 1)],
}
"""Side, processes, threads."""


def start_side(
    stack: ExitStack, name: str, processes: int, threads: int, ids: int, size: int
) -> Side:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    words = [sys.executable, __file__, name, f"--processes={processes}", f"--threads={threads}"]
    words += [f"--ids={ids}", f"--size={size}", f"--meeting={folder / 'ranks'}"]
    workers = [
        SideProcess(
            [*words, f"--rank={rank}"], {"OMP_NUM_THREADS": str(threads)}, log=folder / "log"
        )
        for rank in range(processes)
    ]
    side = stack.enter_context(Side(workers, is_restless=name == "torchrec"))
    side.wait_ready()
    return side


def measure(ids: int, size: int, shapes: Any, num_batches: int, repeats: int) -> dict[str, float]:
    """Median examples per second by side."""
    with ExitStack() as stack:
        sides = {
            f"{name}, {processes} x {threads}": start_side(
                stack, name, processes, threads, ids, size
            )
            for name, processes, threads in shapes
        }
        calls = {
            name: lambda side=side: side.run(size, size * num_batches).examples_per_s
            for name, side in sides.items()
        }
        return {name: statistics.median(t) for name, t in take_turns(calls, repeats).items()}


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--only", default="", help="such as '1 ids, batch 1000': a part of it")
    options = parser.parse_args()
    console.print(f"[bold]DLRM beside TorchRec[/bold]. {machine()}")
    if importlib.util.find_spec("torchrec") is None:
        console.print("TorchRec is not installed; docs/coming_from_torchrec.md says how")
    figures: dict[str, Any] = {}
    rows = []
    for ids, size in WORKLOADS:
        for cores, shapes in CORES.items():
            if options.only not in f"{ids} ids, batch {size}, {cores}":
                continue
            known = [
                shape
                for shape in shapes
                if shape[0] != "torchrec" or importlib.util.find_spec("torchrec")
            ]
            num_batches = (8 if options.quick else 30) * min(1000 // size, 10)
            rates = measure(ids, size, known, num_batches, 2 if options.quick else options.repeats)
            best = {
                side: max((r for name, r in rates.items() if name.startswith(side)), default=NAN)
                for side in SIDES
            }
            ours, theirs, limit = (best[side] for side in SIDES)
            figures[f"{ids} ids, batch {size}, {cores}"] = {
                "rates": rates,
                "ratio": ours / theirs,
                "share of the network alone": {"ours": ours / limit, "torchrec": theirs / limit},
            }
            shown = [f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}x", f"{limit:,.0f}"]
            shown.append(f"{ours / limit:.0%}, {theirs / limit:.0%}")
            rows.append([str(ids), str(size), cores, *shown])
    columns = ["ids per feature", "batch", "cores", "ours", "torchrec", "ratio"]
    columns += ["network alone", "shares"]
    report("examples per second, medians", columns, rows)
    write_json(options.json, figures)


def serve_side() -> None:
    """Run as a process of a side."""
    parser = side_parser(__doc__ or "", SIDES, LR)
    parser.add_argument("--size", type=int, help="of a batch")
    parser.add_argument("--ids", type=int, help="per feature, on average")
    answer_lines(__doc__ or "", SIDES, LR, parser)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in SIDES:
        serve_side()
    else:
        main()
