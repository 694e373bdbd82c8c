"""CTR-DNN through both APIs, over the same Dataset: `train_from_dataset` and `Trainer.fit`.

    python bench/fluid_door.py [--quick] [--repeats 5] [--json FILE] [--modes local,sync,...]

Records are parsed and in memory. Both sides train with 2 threads in this process, taking turns once
per round, and compute an AUC; except in "local", tables and dense parameters are on a server
process.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ctr_batches import DIM, NUM_COUNTS, NUM_IDS, NUM_SLOTS, WIDTHS
from ctr_files import drawn_files
from ctr_network import LR, layers
from measure import argument_parser, console, judge, machine, report, take_turns, write_json
from side_processes import start_servers
from sparsefleet import fluid, optim
from sparsefleet.fleet import Fleet, RoleInfo
from sparsefleet.fluid.fleet import StrategyFactory
from sparsefleet.fluid.fleet.program_fleet import ProgramFleet
from sparsefleet.modes import AsyncConfig, GeoConfig
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.train import Trainer, TrainerConfig

NUM_THREADS = 2
NUM_SERVERS = 1
BATCHES = (1000, 100)
NUM_EXAMPLES = 60_000
QUICK_EXAMPLES = 4_000
TARGET = 0.95
EXCHANGE_STEPS = 100
STRATEGIES: dict[str, Callable[[], Any]] = {
    "sync": StrategyFactory.create_sync_strategy,
    "half_async": StrategyFactory.create_half_async_strategy,
    "async": StrategyFactory.create_async_strategy,
    "geo": lambda: StrategyFactory.create_geo_strategy(EXCHANGE_STEPS),
}
MODES: dict[str, Any] = {
    **{mode: mode for mode in ("local", *STRATEGIES)},
    # The defaults, set explicitly: steps of the warm-up then do not wait, as in Fluid.
    "async": AsyncConfig(max_merge=4 * NUM_THREADS, wait_s=0.05),
    "geo": GeoConfig(push_interval_steps=EXCHANGE_STEPS),
}
Pass = tuple[float, float]
"""Return wall-clock seconds and CPU seconds."""

SLOTS = [f"C{number}" for number in range(1, NUM_SLOTS + 1)]


class Network:
    """Build the program in the default programs."""

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
        self.variables = [dense, *slots, label]


class Model(nn.Module):
    """The same network as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = SparseEmbeddingBag("rows", DIM, mode="sum", optimizer=optim.SGD(lr=LR))
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


@contextlib.contextmanager
def sides_of(
    mode: str, endpoints: list[str], files: list[str], batch_size: int
) -> Iterator[dict[str, Callable[[], Pass]]]:
    """Train one pass on each side."""
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
        contextlib.ExitStack() as ending,
    ):
        network = Network()
        main, startup, scope = minimized(network, mode, endpoints, ending)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        dataset = dataset_of(network, files, batch_size)
        model = Model()
        trainer = Trainer(
            model,
            lambda output, labels: nn.functional.cross_entropy(output, labels.reshape(-1)),
            torch.optim.SGD(model.parameters(), lr=LR),
            mode=MODES[mode],
            threads=NUM_THREADS,
            config=TrainerConfig(quiet=True),
            fleet=fleet_of(Fleet(), endpoints),
        )
        ending.callback(trainer.close)
        batches = dataset.batches(label="label")
        yield {
            "Fluid: train_from_dataset": lambda: _timed(
                lambda: exe.train_from_dataset(main, dataset, scope, NUM_THREADS)
            ),
            "PyTorch: Trainer.fit": lambda: _timed(lambda: trainer.fit(batches)),
        }


def minimized(
    network: Network, mode: str, endpoints: list[str], ending: contextlib.ExitStack
) -> tuple[Any, Any, Any]:
    """The programs that train the network, and the scope with their values."""
    optimizer = fluid.optimizer.SGD(LR)
    if mode == "local":
        optimizer.minimize(network.loss)
    else:
        fleet = fleet_of(ProgramFleet(), endpoints)
        fleet.distributed_optimizer(optimizer, STRATEGIES[mode]()).minimize(network.loss)
        with contextlib.redirect_stdout(None):  # a table with settings
            fleet.init_worker()
        ending.callback(fleet.stop_worker)
    return fluid.default_main_program(), fluid.default_startup_program(), fluid.global_scope()


def fleet_of(fleet: Any, endpoints: list[str]) -> Any:
    """A fleet with a single worker."""
    if endpoints:
        fleet.init(RoleInfo(kind="worker", server_endpoints=tuple(endpoints)))
    return fleet


@contextlib.contextmanager
def servers_of(mode: str) -> Iterator[list[str]]:
    """Yield the server endpoints for one measurement; none for "local"."""
    if mode == "local":
        yield []
        return
    key = os.environ.setdefault("SPARSEFLEET_JOB_KEY", secrets.token_hex(16))
    servers, endpoints = start_servers(NUM_SERVERS, None, key)
    try:
        yield endpoints
    finally:
        for server in servers:
            server.close(terminate=True)


def _timed(call: Callable[[], object]) -> Pass:
    begin, cpu_begin = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - begin, time.process_time() - cpu_begin


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--modes", default=",".join(MODES), help="modes, separated by commas")
    arguments = parser.parse_args()
    console.print(f"[bold]CTR-DNN through both APIs[/bold], {NUM_THREADS} threads. {machine()}")
    size = QUICK_EXAMPLES if arguments.quick else NUM_EXAMPLES
    figures: dict[str, object] = {"examples": size}
    with tempfile.TemporaryDirectory() as folder:
        files = list(map(str, drawn_files(Path(folder), "part", NUM_THREADS, size // NUM_THREADS)))
        for mode in arguments.modes.split(","):
            for batch_size in BATCHES:
                with (
                    servers_of(mode) as endpoints,
                    sides_of(mode, endpoints, files, batch_size) as sides,
                ):
                    taken = take_turns(sides, arguments.repeats)
                figures[_name(mode, batch_size)] = taken
                _report(mode, batch_size, size, taken)
    write_json(arguments.json, figures)


def _name(mode: str, batch_size: int) -> str:
    """Return the key of a result; "local" has no mode in it, as in older results."""
    return str(batch_size) if mode == "local" else f"{mode} {batch_size}"


def _report(mode: str, batch_size: int, size: int, taken: Mapping[str, Sequence[Pass]]) -> None:
    rows, rates = [], []
    for name, passes in taken.items():
        found = [size / seconds for seconds, _ in passes]
        rates.append(statistics.median(found))
        cpu_us = statistics.median(1e6 * cpu_s / size for _, cpu_s in passes)
        spread = f"{min(found):,.0f} .. {max(found):,.0f}"
        rows.append([name, f"{rates[-1]:,.0f}", spread, f"{cpu_us:.1f}"])
    columns = ["", "examples/s", "range", "CPU us/example"]
    report(f"{mode}, batch {batch_size:,}", columns, rows)
    share = rates[0] / rates[1]
    judge(f"Fluid has {share:.0%} of PyTorch's speed, target {TARGET:.0%}:", share >= TARGET)


if __name__ == "__main__":
    main()
