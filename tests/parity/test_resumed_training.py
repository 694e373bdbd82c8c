"""A training that was stopped and resumed ends with the same bits as an uninterrupted one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.saved_training import (
    BreakingData,
    DropoutClicks,
    StoppedError,
    assert_same,
    click_batches,
    contents,
    make_trainer,
)
from tests.support.servers import NativeServers
from torch import nn

from sparsefleet import optim
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.data import MultiSlot, Reader, Slot
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.store import RowDtype
from sparsefleet.train import CheckpointConfig, TrainerConfig

pytestmark = pytest.mark.usefixtures("job_key")

BATCHES = click_batches(11)
EPOCHS = 3
DEADLINE_S = 90.0


def halved(step: int) -> float:
    return 0.5 ** (step // 10)


@pytest.mark.parametrize("mode", ["local", "sync"])
@pytest.mark.parametrize(
    "stop_at", [7, 25, *(pytest.param(n, marks=pytest.mark.slow) for n in (11, 12))]
)
def test_one_worker_resumes_bit_for_bit(mode: str, stop_at: int, tmp_path: Path) -> None:
    def train(out: Path, stop: int | None = None, **options: Any) -> None:
        with NativeServers(2) as servers:
            endpoints = servers.endpoints if mode == "sync" else ()
            trainer = make_trainer(endpoints, mode=mode, schedule=halved, **options)
            with trainer:
                trainer.fit(BreakingData(BATCHES, stop), epochs=EPOCHS)
                trainer.save(out)

    config = CheckpointConfig(
        directory=tmp_path / "series", every_steps=3, skip_while_writing=False
    )
    train(tmp_path / "whole")
    with pytest.raises(StoppedError):
        train(tmp_path / "never", stop_at, checkpoints=config)
    train(tmp_path / "resumed", checkpoints=config, resume="auto")
    assert_same(contents(tmp_path / "resumed"), contents(tmp_path / "whole"))


@pytest.mark.parametrize("row_dtype", ["bf16", "int8"])
def test_rows_in_fewer_bits_resume_bit_for_bit(row_dtype: RowDtype, tmp_path: Path) -> None:
    class SmallRows(DropoutClicks):
        def __init__(self) -> None:
            super().__init__()
            self.rows = SparseEmbeddingBag("ads", 4, row_dtype=row_dtype)

    def train(out: Path, epochs: int, **options: Any) -> None:
        torch.manual_seed(0)
        with make_trainer(model=SmallRows(), mode="local", **options) as trainer:
            trainer.fit(BATCHES, epochs=epochs)
            trainer.save(out)

    config = CheckpointConfig(directory=tmp_path / "series", every_steps=5, deltas_between_fulls=2)
    train(tmp_path / "whole", 2)
    train(tmp_path / "half", 1, checkpoints=config)
    train(tmp_path / "resumed", 2, checkpoints=config, resume="auto")
    assert_same(contents(tmp_path / "resumed"), contents(tmp_path / "whole"))


def test_reader_and_torch_optimizer_resume_bit_for_bit(tmp_path: Path) -> None:
    lines = "".join(f"3 {i} {i * 7 % 50} {i * 3 % 40} 1 {i % 2}\n" for i in range(200))
    (tmp_path / "log").write_text(lines)
    log_format = MultiSlot(Slot("ids", "uint64", (3,)), Slot("click", "float", ()))

    class Inputs(DropoutClicks):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids.long())

    def train(out: Path, epochs: int, **options: Any) -> None:
        torch.manual_seed(0)
        model = Inputs()
        model.rows.own_optimizer = optim.Adagrad()
        optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)  # only torch has it
        reader = Reader(tmp_path / "log", log_format, 16, label="click")
        with make_trainer(model=model, optimizer=optimizer, mode="local", **options) as trainer:
            trainer.fit(reader, epochs=epochs)
            trainer.save(out)

    config = CheckpointConfig(directory=tmp_path / "series", every_steps=5, keep=9)
    train(tmp_path / "whole", 2)
    train(tmp_path / "half", 1, checkpoints=config)
    middle = tmp_path / "series" / "step-000000000005"
    train(tmp_path / "resumed", 2, resume=middle)
    assert_same(contents(tmp_path / "resumed"), contents(tmp_path / "whole"))


class PlainClicks(nn.Module):
    """Uses no random numbers: workers that are threads of one process would share a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = SparseEmbeddingBag("ads", 4)
        self.head = nn.Linear(4, 1)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[0.5, -0.25, 0.125, 1.0]]))
            self.head.bias.zero_()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rows(ids)).squeeze(1)


def as_workers(
    num_workers: int, num_servers: int, work: Callable[[Any, int], None], **options: Any
) -> None:
    def run(endpoints: list[str], index: int) -> None:
        with make_trainer(endpoints, index, num_workers, model=PlainClicks(), **options) as trainer:
            work(trainer, index)

    with NativeServers(num_servers) as servers, ThreadPoolExecutor(num_workers) as pool:
        running = [pool.submit(run, servers.endpoints, index) for index in range(num_workers)]
        for future in running:
            future.result(DEADLINE_S)


@pytest.mark.parametrize(
    "every", [{"every_s": 0.003}, pytest.param({"every_steps": 4}, marks=pytest.mark.slow)]
)
def test_two_workers_with_uneven_data_resume_bit_for_bit(
    every: dict[str, Any], tmp_path: Path
) -> None:
    data = [click_batches(21, seed=1), click_batches(9, seed=2)]
    config = CheckpointConfig(
        directory=tmp_path / "series", keep=100, skip_while_writing=False, **every
    )

    def whole(trainer: Any, index: int) -> None:
        trainer.fit(data[index], epochs=2)
        trainer.save(tmp_path / "whole")

    def saving(trainer: Any, index: int) -> None:
        trainer.fit(data[index], epochs=2)
        trainer.save(tmp_path / "saving")

    as_workers(2, 2, whole, mode="sync")
    as_workers(2, 2, saving, mode="sync", checkpoints=config)
    assert_same(contents(tmp_path / "saving"), contents(tmp_path / "whole"))
    series = sorted((tmp_path / "series").glob("step-*"))
    assert len(series) >= 3
    for number, checkpoint in enumerate(series[:: max(1, len(series) // 4)]):

        def resumed(trainer: Any, index: int, number: int = number) -> None:
            trainer.fit(data[index], epochs=2)
            trainer.save(tmp_path / f"resumed-{number}")

        as_workers(2, 1 + number, resumed, mode="sync", resume=checkpoint)
        assert_same(contents(tmp_path / f"resumed-{number}"), contents(tmp_path / "whole"))


def test_prefetched_batches_are_not_counted_as_trained_on(tmp_path: Path) -> None:
    config = CheckpointConfig(
        directory=tmp_path / "series", every_steps=4, keep=9, skip_while_writing=False
    )
    for prefetch in (True, False):
        with NativeServers(1) as servers:
            trainer = make_trainer(
                servers.endpoints,
                mode="async",
                checkpoints=config,
                config=TrainerConfig(quiet=True, prefetch=prefetch),
            )
            with trainer:
                trainer.fit(click_batches(10))
        for path in sorted((tmp_path / "series").glob("step-*")):
            found = Checkpoint.open(str(path))
            report = found.workers()[0]
            assert report["batches"] == found.manifest.step
            if report["position"] is not None:
                assert report["position"]["batches"] == found.manifest.step
