"""What the workers of `test_killed_workers.py` run."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tests.support.killable_workers import pace
from torch import Tensor, nn

from sparsefleet import fleet, fluid, optim
from sparsefleet.data import MultiSlot, Reader, ReaderConfig, Slot
from sparsefleet.engine.model_checkpoint import ModelSave
from sparsefleet.errors import PeerLostError
from sparsefleet.fleet.meeting import Meeting
from sparsefleet.fluid.executor.program_workload import ProgramRunner
from sparsefleet.fluid.fleet import Role, StrategyFactory, UserDefinedRoleMaker
from sparsefleet.fluid.fleet.program_fleet import ProgramFleet
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag
from sparsefleet.serving.export import model_export as serving_export
from sparsefleet.serving.updates.publisher import PublishConfig, Publisher
from sparsefleet.store import Constant, TableSpec
from sparsefleet.train import CheckpointConfig, Trainer, TrainerConfig

BATCHES, BATCH_SIZE, EPOCHS = 40, 4, 2


def ledger_spec() -> TableSpec:
    """The table of the rows."""
    return TableSpec(name="ledger", dim=1, optimizer=optim.SGD(lr=1.0), initializer=Constant(0.0))


class Ledger(nn.Module):
    """A model that counts records: each adds 1 to the row of its id and to a dense parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = SparseEmbedding(
            "ledger", 1, optimizer=optim.SGD(lr=1.0), initializer=Constant(0.0)
        )
        self.total = nn.Parameter(torch.zeros(1))

    def forward(self, ids: Tensor) -> Tensor:
        return self.rows(ids).sum() + self.total * len(ids)


def records(rank: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of records with unique ids."""
    first = rank * BATCHES * BATCH_SIZE
    for number in range(BATCHES):
        begin = first + number * BATCH_SIZE
        yield torch.arange(begin, begin + BATCH_SIZE), torch.zeros(BATCH_SIZE)


def write_files(folder: Path, num_files: int = 8) -> None:
    """Write the records of all workers to files; each worker reads every second file."""
    ids = range(2 * BATCHES * BATCH_SIZE)
    for number in range(num_files):
        lines = [f"1 {key} 1 0\n" for key in ids[number::num_files]]
        (folder / f"part-{number}").write_text("".join(lines))


def reader(rank: int, folder: str) -> Reader:
    """Reads the files with several threads, in any order."""
    return Reader(
        f"{folder}/part-*",
        MultiSlot(Slot("ids", "uint64", ()), Slot("click", "float", ())),
        BATCH_SIZE,
        label="click",
        threads=3,
        worker_index=rank,
        worker_num=2,
    )


def shared_reader(folder: str, *, threads: int) -> Reader:
    """Reads files that the servers deal to whichever worker is free."""
    return Reader(
        f"{folder}/part-*",
        MultiSlot(Slot("ids", "uint64", ()), Slot("click", "float", ())),
        BATCH_SIZE,
        label="click",
        threads=threads,
        config=ReaderConfig(queue_batches=2),
        sharding=fleet.sharding("train"),
    )


def minus_sum(output: Tensor, _: Tensor) -> Tensor:
    """The gradient of each record is -1."""
    pace()
    return -output.sum()


def ledger_trainer(
    mode: str,
    threads: int,
    loss: Callable[[Tensor, Tensor], Tensor] = minus_sum,
    checkpoints: CheckpointConfig | None = None,
) -> Trainer:
    return Trainer(
        Ledger(),
        loss,
        optim.SGD(lr=1.0),
        mode=mode,
        config=TrainerConfig(quiet=True),
        threads=threads,
        checkpoints=checkpoints,
    )


def keep_ledger(
    rank: int, mode: str, threads: int, folder: str = "", checkpoints: str = ""
) -> None:
    """Count the records of files, or generated ones; save every few steps in `checkpoints`."""
    torch.set_num_threads(1)
    data = reader(rank, folder) if folder else lambda: records(rank)
    saves = CheckpointConfig(directory=checkpoints, every_steps=7) if checkpoints else None
    with ledger_trainer(mode, threads, checkpoints=saves) as trainer:
        trainer.fit(data, epochs=EPOCHS)


def keep_gated_ledger(rank: int, mode: str, threads: int, folder: str, gate: str) -> None:
    """Count the records of files; worker 0 stops after a few batches until `gate` exists."""
    torch.set_num_threads(1)
    steps_left = [5]

    def loss(output: Tensor, labels: Tensor) -> Tensor:
        steps_left[0] -= 1
        while rank == 0 and steps_left[0] <= 0 and not Path(gate).exists():
            time.sleep(0.01)
        return minus_sum(output, labels)

    with ledger_trainer(mode, threads, loss) as trainer:
        trainer.fit(reader(rank, folder), epochs=EPOCHS)


def keep_ledger_and_die_at_the_end(rank: int, mode: str, moment: str, folder: str) -> None:
    """Count records; the first process of worker 1 dies when worker 0 has ended.

    moment: "leaving", before it leaves the others; "left", when it has closed its trainer.
    """
    torch.set_num_threads(1)
    dies = rank == 1 and os.environ["SPARSEFLEET_INCARNATION"] == "0"
    other = Path(folder, "worker-0-has-ended")
    if dies and moment == "leaving":
        Meeting.leave = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    with ledger_trainer(mode, 1) as trainer:
        trainer.fit(lambda: records(rank), epochs=EPOCHS)
        while dies and not other.exists():
            time.sleep(0.01)
    if rank == 0:
        other.touch()
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)


def keep_shared_ledger(rank: int, mode: str, threads: int, folder: str) -> None:
    """Count the records of files that the servers deal, in two calls of `fit`."""
    del rank
    torch.set_num_threads(1)
    with ledger_trainer(mode, threads) as trainer:
        trainer.fit(lambda: shared_reader(folder, threads=threads))
        trainer.fit(lambda: shared_reader(folder, threads=threads), epochs=EPOCHS - 1)


def keep_ledger_until_an_error(rank: int, mode: str, threads: int, how: str) -> None:
    """Count records; the first processes of each rank end with an error, as `how` says."""
    torch.set_num_threads(1)
    incarnation = int(os.environ["SPARSEFLEET_INCARNATION"])
    steps_left = [7 + 5 * rank + 11 * incarnation]

    def loss(output: Tensor, labels: Tensor) -> Tensor:
        steps_left[0] -= 1
        if how != "between" and incarnation < 3 and steps_left[0] == 0:
            if how == "exit":
                raise SystemExit(3)
            raise RuntimeError("this process is doomed")
        return minus_sum(output, labels)

    trainer = ledger_trainer(mode, threads, loss)
    if how == "open":  # nobody closes it: the store is closed when the interpreter ends
        trainer.fit(lambda: records(rank), epochs=EPOCHS)
        trainer.close()
        return
    with trainer:
        if how == "between" and incarnation < 2:
            trainer.fit(lambda: records(rank), epochs=1)
            raise RuntimeError("between two calls")
        trainer.fit(lambda: records(rank), epochs=1 if how == "between" else EPOCHS)
        if how == "between":
            trainer.fit(lambda: records(rank), epochs=EPOCHS - 1)


def train_model(rank: int, mode: str, out: str, dies_at: int = -1) -> None:
    """Train a model whose result depends on every bit; worker 0 writes out its dense part.

    dies_at: a batch at which the first process of worker 1 kills itself.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        SparseEmbeddingBag("words", 4),
        nn.Linear(4, 8),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(8, 1),
        nn.Flatten(0),
    )

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        draw = torch.Generator().manual_seed(rank)
        for number in range(BATCHES):
            pace()
            if (rank, number, os.environ["SPARSEFLEET_INCARNATION"]) == (1, dies_at, "0"):
                os.kill(os.getpid(), signal.SIGKILL)
            yield (
                torch.randint(0, 60, (BATCH_SIZE, 3), generator=draw),
                torch.rand(BATCH_SIZE, generator=draw),
            )

    with Trainer(
        model,
        nn.BCEWithLogitsLoss(),
        optim.Adagrad(lr=0.1),
        mode=mode,
        config=TrainerConfig(quiet=True),
    ) as trainer:
        trainer.fit(batches, epochs=EPOCHS)
        if rank == 0:
            dense = [parameter.detach().ravel() for parameter in model.parameters()]
            Path(out).write_bytes(torch.cat(dense).numpy().tobytes())


def keep_program_ledger(
    rank: int, mode: str, threads: int, folder: str, *, is_shuffled: bool = False
) -> None:
    """Count the records of files with a Fluid program, epoch by epoch.

    is_shuffled: the workers exchange records before the first epoch.
    """
    torch.set_num_threads(1)
    _slow_down(ProgramRunner)
    ids = fluid.layers.data("ids", [1], dtype="int64")
    click = fluid.layers.data("click", [1])
    first = fluid.ParamAttr(name="ledger", initializer=fluid.initializer.Constant(0.0))
    rows = fluid.layers.embedding(
        ids, [2 * BATCHES * BATCH_SIZE, 1], is_sparse=True, param_attr=first
    )
    loss = fluid.layers.scale(fluid.layers.reduce_sum(rows), scale=-1.0)
    endpoints = os.environ["SPARSEFLEET_SERVERS"].split(",")
    programs = ProgramFleet()
    programs.init(UserDefinedRoleMaker(rank, Role.WORKER, 2, endpoints))
    strategy = getattr(StrategyFactory, f"create_{mode}_strategy")
    arguments = [10] if mode == "geo" else []
    programs.distributed_optimizer(fluid.optimizer.SGD(1.0), strategy(*arguments)).minimize(loss)
    programs.init_worker()
    executor = fluid.Executor()
    executor.run(fluid.default_startup_program())
    kind = "InMemoryDataset" if is_shuffled else "QueueDataset"
    dataset = fluid.DatasetFactory().create_dataset(kind)
    dataset.set_use_var([ids, click])
    dataset.set_batch_size(BATCH_SIZE)
    dataset.set_thread(threads)
    files = sorted(str(path) for path in Path(folder).glob("part-*"))
    dataset.set_filelist(files[rank::2])
    if is_shuffled:
        dataset.load_into_memory()
        dataset.global_shuffle(programs)
    for _ in range(EPOCHS):
        executor.train_from_dataset(fluid.default_main_program(), dataset)
    programs.stop_worker()


def keep_shuffled_program_ledger(rank: int, folder: str) -> None:
    """Count records that the workers have exchanged; write any error to a file."""
    try:
        keep_program_ledger(rank, "async", 1, folder, is_shuffled=True)
    except PeerLostError as error:
        Path(folder, f"error-of-worker-{rank}.txt").write_text(str(error))
        raise


def _slow_down(runner: type[ProgramRunner]) -> None:
    train = runner.train

    def slowly(self: ProgramRunner, *arguments: Any) -> Any:
        pace()
        return train(self, *arguments)

    runner.train = slowly  # type: ignore[method-assign]


class EachLedger(Ledger):
    """The same with an output per record, so that it can be evaluated and exported."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.rows(ids).squeeze(1) + self.total


def die_once(rank: int, doomed: int, mark: str) -> None:
    """Kill this process if it is the first of the `doomed` rank to come here."""
    if rank == doomed and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def keep_ledger_and_die_within(rank: int, mode: str, moment: str, doomed: int, folder: str) -> None:
    """Count records, evaluate, save, export and publish; worker `doomed` dies at that moment.

    Each worker writes the metrics it found to a file.
    """
    torch.set_num_threads(1)
    out, mark = Path(folder), str(Path(folder, "died"))

    def at(name: str) -> None:
        if name == moment:
            die_once(rank, doomed, mark)

    def held_out(name: str) -> Iterator[tuple[Tensor, Tensor]]:
        for number, (ids, _) in enumerate(records(rank)):
            if number == 3:
                at(name)
                return
            yield ids, ids % 2.0

    write, publish = ModelSave.write, Publisher.write

    def dying_write(self: ModelSave) -> Any:
        at("saving")
        done = write(self)
        at("saved")
        return done

    def dying_publish(self: Publisher) -> Any:
        at("publishing")
        done = publish(self)
        at("published")
        return done

    ModelSave.write, Publisher.write = dying_write, dying_publish  # type: ignore[method-assign]
    within = moment == "validating"
    publishes = PublishConfig(model=out / "first", target=out / "updates", every_steps=10)
    with Trainer(
        EachLedger(),
        minus_sum,
        optim.SGD(lr=1.0),
        mode=mode,
        config=TrainerConfig(quiet=True, validate_every_steps=15 if within else None),
        metrics={},
        checkpoints=CheckpointConfig(directory=out / "series", every_steps=7),
        publish=publishes if moment.startswith("publish") else None,
    ) as trainer:
        found = [trainer.fit(lambda: records(rank), validation=lambda: held_out("validating"))]
        figures = [trainer.evaluate(lambda: held_out("evaluating"))]
        trainer.save(out / "saved")
        at("between")
        example = (torch.arange(3), torch.zeros(3))
        inside = serving_export.save_inference_model

        def dying_export(*given: Any, **named: Any) -> Any:
            at("exporting")
            done = inside(*given, **named)
            at("exported")
            return done

        serving_export.save_inference_model = dying_export
        trainer.export(out / "exported", example)
        found.append(trainer.fit(lambda: records(rank), validation=lambda: held_out("again")))
        figures.append(trainer.evaluate(lambda: held_out("at the end")))
    validations = [epoch.validation for history in found for epoch in history.epochs]
    Path(folder, f"figures-{rank}.json").write_text(json.dumps([validations, figures]))


def export_while_the_first_worker_dies(rank: int, mode: str, moment: str, folder: str) -> None:
    """Count records and export; worker 0 dies "before" or "within" the export."""
    torch.set_num_threads(1)
    mark = str(Path(folder, "died"))
    inside = serving_export.save_inference_model

    def dying_export(*given: Any, **named: Any) -> Any:
        if moment == "within":
            die_once(rank, 0, mark)
        return inside(*given, **named)

    serving_export.save_inference_model = dying_export
    config = TrainerConfig(quiet=True)
    with Trainer(EachLedger(), minus_sum, optim.SGD(lr=1.0), mode=mode, config=config) as trainer:
        trainer.fit(lambda: records(rank))
        if moment == "before":
            die_once(rank, 0, mark)
        trainer.export(Path(folder, "exported"), (torch.arange(3), torch.zeros(3)))
