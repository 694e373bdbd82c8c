"""The job that `sparsefleet chaos --ledger` runs: every record adds exactly 1 to its own row.

Each worker trains on its own records, whose gradients are -1 for the row of the record and -1 for a
dense counter of records. After training, one worker compares all rows and the counter with the
expected values, and writes the differences to a file. This detects any record that was lost or
trained twice, whatever happened to the processes. With the torch API, the counter has one element
on each server.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from sparsefleet.fleet import role_from_environment
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.store import Constant, RemoteStore, RemoteStoreConfig

__all__ = ["main"]

_TABLE = "ledger"
_GEO_INTERVAL = 5
_WAIT_S = 600.0
_SHOWN = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ledger job in the role of this process, server or worker; return 0."""
    options = _make_parser().parse_args(arguments)
    role = role_from_environment()
    train: Callable[[argparse.Namespace, RoleInfo], None]
    train = _train_by_torch if options.api == "torch" else _train_by_fluid
    train(options, role)  # does not return in a server process
    _audit(options, role)
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ledger", description=__doc__.split("\n")[0])
    parser.add_argument("--api", choices=("torch", "fluid"), default="torch")
    parser.add_argument("--mode", default="async")
    parser.add_argument("--batches", type=int, default=200, help="batches per worker")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--pace-ms", type=float, default=10.0, help="milliseconds between batches")
    parser.add_argument("--out", required=True, help="directory for ledger.json")
    parser.add_argument("--checkpoints", default="", help="directory of checkpoints")
    return parser


def _rate(mode: str, num_workers: int) -> float:
    """Return the learning rate at which each record adds 1, as sync mode averages over workers."""
    return float(num_workers) if mode == "sync" else 1.0


def _train_by_torch(options: argparse.Namespace, role: RoleInfo) -> None:
    import torch
    from torch import nn

    from sparsefleet import CheckpointConfig, Trainer, TrainerConfig, optim
    from sparsefleet.engine.dense_groups import DenseGroup
    from sparsefleet.modes import GeoConfig
    from sparsefleet.nn import SparseEmbedding

    class Ledger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = SparseEmbedding(_TABLE, 1, initializer=Constant(0.0))
            self.records = nn.Parameter(torch.zeros(len(role.server_endpoints)))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            # Not done where batches are read, because a restarted worker reads finished batches
            # again.
            time.sleep(options.pace_ms / 1e3)
            loss: torch.Tensor = -(self.rows(ids).sum() + self.records.sum() * len(ids) * weight)
            return loss

    def batches() -> Iterator[torch.Tensor]:
        for ids in _batches_of(options, role.index):
            _begin_file(options, role).touch()  # this worker has reached its first batch
            yield torch.from_numpy(ids)

    checkpoints = None
    if options.checkpoints:
        checkpoints = CheckpointConfig(directory=options.checkpoints, every_s=5.0)
    model = Ledger()
    # Hybrid averages dense gradients only.
    weight = role.worker_num if options.mode == "hybrid" else 1
    counter = DenseGroup(
        table="records",
        index=0,
        parameters=[model.records],
        optimizer=optim.SGD(lr=_rate(options.mode, role.worker_num)),
        min_block_size=1,
    )
    with Trainer(
        model,
        None,
        [counter],  # type: ignore[arg-type]  # the engine also takes groups
        mode=GeoConfig(push_interval_steps=_GEO_INTERVAL)
        if options.mode == "geo"
        else options.mode,
        config=TrainerConfig(quiet=True),
        checkpoints=checkpoints,
        resume="auto" if options.checkpoints else None,
    ) as trainer:
        trainer.fit(batches)


def _train_by_fluid(options: argparse.Namespace, role: RoleInfo) -> None:
    from sparsefleet import fluid
    from sparsefleet.fluid.incubate.fleet.base import (  # type: ignore[import-untyped]
        role_maker,
    )
    from sparsefleet.fluid.incubate.fleet.parameter_server.distribute_transpiler import (  # type: ignore[import-untyped]
        distributed_strategy,
        fleet,
    )

    records = options.batches * options.batch_size * role.worker_num
    ids = fluid.layers.data("ids", [1], dtype="int64")
    zero = fluid.initializer.Constant(0.0)
    table = fluid.ParamAttr(name=_TABLE, initializer=zero)
    rows = fluid.layers.embedding(ids, [records, 1], is_sparse=True, param_attr=table)
    counter = fluid.layers.create_parameter(
        [1], "float32", attr=fluid.ParamAttr(name="records", initializer=zero)
    )
    ones = fluid.layers.fill_constant_batch_size_like(rows, [-1, 1], "float32", 1.0)
    counted = fluid.layers.reduce_sum(counter) * fluid.layers.reduce_sum(ones)
    cost = fluid.layers.scale(fluid.layers.reduce_sum(rows) + counted, scale=-1.0)
    optimizer = fluid.optimizer.SGD(_rate(options.mode, role.worker_num))
    fleet.init(role_maker.PaddleCloudRoleMaker())
    settings = (_GEO_INTERVAL,) if options.mode == "geo" else ()
    strategy = getattr(distributed_strategy.StrategyFactory, f"create_{options.mode}_strategy")(
        *settings
    )
    fleet.distributed_optimizer(optimizer, strategy).minimize(cost)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        sys.exit(0)
    fleet.init_worker()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fleet.startup_program)
    dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
    dataset.set_use_var([ids])
    dataset.set_batch_size(options.batch_size)
    dataset.set_filelist([_write_records(options, role.index)])
    dataset.set_pipe_command(f"{sys.executable} {_write_pace(options, role)}")
    exe.train_from_dataset(fleet.main_program, dataset)
    fleet.stop_worker()


def _write_pace(options: argparse.Namespace, role: RoleInfo) -> str:
    """Write the filter program that slows down a Dataset, since a Dataset reads its files itself.

    The filter also reports that training has begun, because it runs only once training reads data.
    """
    pause_s = options.pace_ms / 1e3
    path = Path(options.out, f"pace-{os.getpid()}.py")
    path.write_text(
        "import pathlib, sys, time\n"
        f"pathlib.Path({str(_begin_file(options, role))!r}).touch()\n"
        "for number, line in enumerate(sys.stdin):\n"
        f"    time.sleep({pause_s} if number % {options.batch_size} == 0 else 0)\n"
        "    print(line, end='', flush=True)\n"
    )
    return str(path)


def _write_records(options: argparse.Namespace, rank: int) -> str:
    path = Path(options.out, f"records-{rank}")
    draft = path.with_suffix(f".{os.getpid()}")
    with draft.open("w", encoding="ascii") as file:
        for ids in _batches_of(options, rank):
            file.writelines(f"1 {key}\n" for key in ids.tolist())
    draft.replace(path)
    return str(path)


def _batches_of(options: argparse.Namespace, rank: int) -> Iterator[np.ndarray]:
    size = options.batch_size
    first = rank * options.batches * size
    for number in range(options.batches):
        yield np.arange(first + number * size, first + (number + 1) * size, dtype=np.int64)


def _begin_file(options: argparse.Namespace, role: RoleInfo) -> Path:
    return Path(options.out, f"begun-{role.index}")


def _audit(options: argparse.Namespace, role: RoleInfo) -> None:
    """Wait for all workers; then the first worker compares the tables with the expected values."""
    config = RemoteStoreConfig(timeout_s=_WAIT_S)
    with RemoteStore(role.server_endpoints, name=f"auditor-{role.index}", config=config) as store:
        store.put_note(f"ledger/done/{role.index}", b"")
        if not role.is_first_worker:
            return
        for rank in range(role.worker_num):
            store.get_note(f"ledger/done/{rank}", wait=True, timeout_s=_WAIT_S)
        records = np.arange(options.batches * options.batch_size * role.worker_num, dtype=np.int64)
        counts = store.pull(_TABLE, records, train=False)[:, 0]
        missing, repeated = records[counts < 1], records[counts > 1]
        found = {
            "records": len(records),
            "counted": _dense_counts(store),
            "missing": len(missing),
            "repeated": len(repeated),
            "first_missing": missing[:_SHOWN].tolist(),
            "first_repeated": [[int(key), float(counts[key])] for key in repeated[:_SHOWN]],
        }
    draft = Path(options.out, f"ledger.{os.getpid()}")
    draft.write_text(json.dumps(found))
    draft.replace(Path(options.out, "ledger.json"))
    print("ledger:", json.dumps(found), flush=True)


def _dense_counts(store: RemoteStore) -> list[float]:
    """Return the elements of the dense counter, the only table other than the ledger."""
    prefix, suffix = "table.", ".version"
    names = {
        name[len(prefix) : -len(suffix)]
        for stats in store.stats()
        for name in stats
        if name.startswith(prefix) and name.endswith(suffix)
    }
    [counter] = names - {_TABLE}
    return [float(value) for value in store.pull_dense(counter)]


if __name__ == "__main__":
    sys.exit(main())
