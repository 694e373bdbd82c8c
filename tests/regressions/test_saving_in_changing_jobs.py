"""Checkpoints of jobs that lose a worker or continue with another number of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.saved_training import (
    BreakingData,
    StoppedError,
    click_batches,
    contents,
    make_trainer,
)
from tests.support.servers import NativeServers
from torch import nn

from sparsefleet import optim
from sparsefleet.checkpoint import Checkpoint, latest, list_checkpoints
from sparsefleet.data import MultiSlot, Reader, Slot, merge_states
from sparsefleet.modes import AsyncConfig, GeoConfig
from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.store import Evict
from sparsefleet.train import CheckpointConfig, Trainer, TrainerConfig

pytestmark = pytest.mark.usefixtures("job_key")

DEADLINE_S = 90.0


class Counting(nn.Module):
    """ids [B, 1] -> float32[B]; the table counts how often each was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = SparseEmbeddingBag("ads", 1, mode="sum", eviction=Evict(min_count=1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.rows(ids.long()).squeeze(1)


def run_workers(
    num_workers: int, work: Callable[[Trainer, int], Any], num_servers: int = 2, **options: Any
) -> list[BaseException | None]:
    """Run the workers; return what each raised."""

    def run(endpoints: list[str], index: int) -> None:
        trainer = make_trainer(
            endpoints,
            index,
            num_workers,
            model=Counting(),
            optimizer=optim.SGD(lr=0.1),
            **options,
        )
        with trainer:
            work(trainer, index)

    with NativeServers(num_servers) as servers, ThreadPoolExecutor(num_workers) as pool:
        running = [pool.submit(run, servers.endpoints, index) for index in range(num_workers)]
        return [future.exception(DEADLINE_S) for future in running]


LINES = (90, 40, 70, 10, 60)
SLOTS = MultiSlot(Slot("ids", "uint64", (1,)), Slot("click", "float", ()))


def write_logs(directory: Path) -> list[Path]:
    """Write files of LINES records, each with a unique key."""
    key = 0
    files = []
    for number, lines in enumerate(LINES):
        files.append(directory / f"part-{number}")
        files[-1].write_text("".join(f"1 {key + line} 1 1\n" for line in range(lines)))
        key += lines
    return files


def num_read(reports: list[dict[str, Any]]) -> int:
    """Records that the positions of a checkpoint say were trained on."""
    merged = merge_states([report["position"]["state"] for report in reports])
    done = sum(LINES[int(path.rpartition("-")[2])] for path in merged["done"])
    return done + sum(end - begin for spans in merged["records"].values() for begin, end in spans)


@pytest.mark.parametrize(
    "mode",
    ["sync", "half_async", AsyncConfig(max_merge=1), "hybrid", GeoConfig()],
    ids=["sync", "half_async", "async", "hybrid", "geo"],
)
def test_rows_and_positions_of_a_checkpoint_are_of_one_moment(mode: Any, tmp_path: Path) -> None:
    files = write_logs(tmp_path)
    config = CheckpointConfig(
        directory=tmp_path / "series",
        every_steps=1,
        keep=1000,
        skip_while_writing=False,
        deltas_between_fulls=5,
    )

    def work(trainer: Trainer, index: int) -> None:
        trainer.fit(Reader(files, SLOTS, 8, label="click", worker_index=index, worker_num=2))

    assert run_workers(2, work, mode=mode, threads=2, checkpoints=config) == [None, None]
    listed = list_checkpoints(str(tmp_path / "series"))
    assert len(listed) >= 4
    for each in listed[:-1]:
        rows = contents(each.path)
        assert len(rows["ads:keys"]) == num_read(Checkpoint.open(each.path).workers())
    assert len(contents(listed[-1].path)["ads:keys"]) == sum(LINES)


@pytest.mark.parametrize("mode", [AsyncConfig(max_merge=1), "sync"], ids=["async", "sync"])
def test_every_record_is_trained_on_once_whatever_the_number_of_workers(
    mode: Any, tmp_path: Path
) -> None:
    files = write_logs(tmp_path)
    place: Path | None = None
    for job, (workers, every) in enumerate([(2, 4), (3, 3), (1, 5), (1, 2), (2, 100)]):
        series = tmp_path / f"job-{job}"
        config = CheckpointConfig(
            directory=series, every_steps=every, keep=100, skip_while_writing=False
        )

        def work(trainer: Trainer, index: int, workers: int = workers) -> None:
            trainer.fit(
                Reader(files, SLOTS, 3, label="click", worker_index=index, worker_num=workers)
            )

        raised = run_workers(
            workers,
            work,
            1 + job % 2,
            mode=mode,
            threads=2,
            checkpoints=config,
            resume=place,
            config=TrainerConfig(quiet=True, prefetch=mode != "sync"),
        )
        assert raised == [None] * workers
        place = Path(
            list_checkpoints(str(series))[0].path
        )  # the first checkpoint: the rest is repeated
        newest = latest(str(series))
        assert newest is not None
        found = contents(newest.path)
        assert found["ads:keys"].tolist() == list(range(sum(LINES)))
        assert set(found["ads:counters"][:, 0].tolist()) == {1}, f"job {job}"


@pytest.mark.parametrize("lost", [2, 0])
def test_a_lost_worker_resumes_where_it_was_saved_last(
    lost: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CheckpointConfig(directory=tmp_path, every_steps=4, keep=100, skip_while_writing=False)

    def work(stop_at: int | None) -> Callable[[Trainer, int], None]:
        def fit(trainer: Trainer, index: int) -> None:
            batches = [(ids[:, :1], clicks) for ids, clicks in click_batches(20, seed=index)]
            data = BreakingData(batches, stop_at if index == lost else None)
            steps[index] = [epoch.steps for epoch in trainer.fit(data, epochs=2).epochs]

        return fit

    def run(stop_at: int | None, **options: Any) -> list[BaseException | None]:
        mode = AsyncConfig(max_staleness=30)
        settings = TrainerConfig(quiet=True, prefetch=False)
        return run_workers(3, work(stop_at), mode=mode, config=settings, **options)

    steps: dict[int, list[int]] = {}
    with monkeypatch.context() as patch:
        patch.setenv("SPARSEFLEET_KEEP_GOING", "1")
        raised = run(9, checkpoints=config)
    assert [type(each) for each in raised if each is not None] == [StoppedError]
    assert isinstance(raised[lost], StoppedError)
    assert steps == {index: [20, 20] for index in range(3) if index != lost}
    if lost == 0:  # which writes the checkpoints
        return
    listed = list_checkpoints(str(tmp_path))
    newest = latest(str(tmp_path))
    assert newest is not None
    assert newest.path == listed[-1].path, "steps do not go back"
    reports = [Checkpoint.open(each.path).workers() for each in listed]
    assert all(len(each) == 3 for each in reports)
    assert [report["batches"] for report in reports[-1][:2]] == [40, 40]
    in_first = [n for n, each in enumerate(reports) if each[0]["epoch"] == 0]
    last = reports[in_first[-1]][lost]
    assert 0 < last["position"]["batches"] <= 9
    assert run(None, resume=listed[in_first[-1]].path) == [None] * 3
    assert steps[lost] == [20 - last["position"]["batches"], 20]
