"""CTR-DNN by `train_from_dataset`, beside the same model by `Trainer.fit`, over the same Dataset.

    python bench/fluid_door.py [--quick] [--repeats 5] [--json FILE]

Records lie parsed in memory; both sides train with 2 threads in this process, and run once a round,
in turn. Both keep an AUC.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ctr_batches import DIM, NUM_COUNTS, NUM_IDS, NUM_SLOTS, WIDTHS
from ctr_files import drawn_files
from ctr_network import LR, layers
from measure import console, machine, parse_arguments, report, take_turns, write_json
from sparsefleet import fluid, optim
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.train import Trainer, TrainerConfig

NUM_THREADS = 2
BATCHES = (1000, 100)
NUM_EXAMPLES = 60_000
QUICK_EXAMPLES = 4_000
TARGET = 0.9
Pass = tuple[float, float]
"""Seconds by the clock, and of the CPU."""

SLOTS = [f"C{number}" for number in range(1, NUM_SLOTS + 1)]


class Network:
    """The program, in the default programs."""

    def __init__(self) -> None:
        dense = fluid.layers.data("dense", [NUM_COUNTS])
        slots = [fluid.layers.data(name, [1], dtype="int64", lod_level=1) for name in SLOTS]
        label = fluid.layers.data("label", [1], dtype="int64")
        table = fluid.ParamAttr(name="ids", initializer=fluid.initializer.Uniform())
        pooled = [
            fluid.layers.sequence_pool(
                fluid.layers.embedding(slot, [NUM_IDS, DIM], is_sparse=True, param_attr=table),
                "sum",
            )
            for slot in slots
        ]
        hidden = fluid.layers.concat([*pooled, dense], axis=1)
        for width in WIDTHS[1:-1]:
            scale = 1 / math.sqrt(hidden.shape[1])
            attr = fluid.ParamAttr(initializer=fluid.initializer.Normal(scale=scale))
            hidden = fluid.layers.fc(hidden, width, act="relu", param_attr=attr)
        predict = fluid.layers.fc(hidden, WIDTHS[-1], act="softmax")
        self.loss = fluid.layers.mean(fluid.layers.cross_entropy(predict, label))
        fluid.layers.auc(predict, label, num_thresholds=2**12, slide_steps=20)
        fluid.optimizer.SGD(LR).minimize(self.loss)
        self.variables = [dense, *slots, label]


class Model(nn.Module):
    """The same as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = SparseEmbeddingBag("ids", DIM, mode="sum", optimizer=optim.SGD(lr=LR))
        self.layers = layers()

    def forward(self, dense: Tensor, **slots: tuple[Tensor, Tensor]) -> Tensor:
        pooled = [self.embedding(slots[name]) for name in SLOTS]
        return self.layers(torch.cat([*pooled, dense], dim=1))


def dataset_of(network: Network, files: list[str], batch_size: int) -> Any:
    made = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    made.set_use_var(network.variables)
    made.set_batch_size(batch_size)
    made.set_thread(NUM_THREADS)
    made.set_filelist(files)
    made.load_into_memory()
    return made


def sides_of(files: list[str], batch_size: int) -> dict[str, Callable[[], Pass]]:
    """Each trains one pass."""
    network = Network()
    main, scope = fluid.default_main_program(), fluid.global_scope()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    dataset = dataset_of(network, files, batch_size)
    model = Model()
    trainer = Trainer(
        model,
        lambda output, labels: nn.functional.cross_entropy(output, labels.reshape(-1)),
        torch.optim.SGD(model.parameters(), lr=LR),
        mode="local",
        threads=NUM_THREADS,
        config=TrainerConfig(quiet=True),
    )
    batches = dataset.batches(label="label")
    return {
        "Fluid: train_from_dataset": lambda: _timed(
            lambda: exe.train_from_dataset(main, dataset, scope, NUM_THREADS)
        ),
        "PyTorch: Trainer.fit": lambda: _timed(lambda: trainer.fit(batches)),
    }


def _timed(call: Callable[[], object]) -> Pass:
    begin, cpu_begin = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - begin, time.process_time() - cpu_begin


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    console.print(f"[bold]CTR-DNN through both doors[/bold], {NUM_THREADS} threads. {machine()}")
    size = QUICK_EXAMPLES if arguments.quick else NUM_EXAMPLES
    figures: dict[str, object] = {"examples": size}
    with tempfile.TemporaryDirectory() as folder:
        files = list(map(str, drawn_files(Path(folder), "part", NUM_THREADS, size // NUM_THREADS)))
        for batch_size in BATCHES:
            with (
                fluid.program_guard(fluid.Program(), fluid.Program()),
                fluid.scope_guard(fluid.Scope()),
            ):
                taken = take_turns(sides_of(files, batch_size), arguments.repeats)
            figures[str(batch_size)] = taken
            _report(batch_size, size, taken)
    write_json(arguments.json, figures)


def _report(batch_size: int, size: int, taken: Mapping[str, Sequence[Pass]]) -> None:
    rows, rates = [], []
    for name, passes in taken.items():
        found = [size / seconds for seconds, _ in passes]
        rates.append(statistics.median(found))
        cpu_us = statistics.median(1e6 * cpu_s / size for _, cpu_s in passes)
        spread = f"{min(found):,.0f} .. {max(found):,.0f}"
        rows.append([name, f"{rates[-1]:,.0f}", spread, f"{cpu_us:.1f}"])
    verdict = f"{rates[0] / rates[1]:.0%}" + (
        f", wanted {TARGET:.0%}" if batch_size == 1000 else ""
    )
    columns = ["", "examples/s", "range", "CPU us/example"]
    report(f"batch {batch_size:,}: the first has {verdict} of the second", columns, rows)


if __name__ == "__main__":
    main()
