from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from sparsefleet.data import LocalSharding, MemoryData, MultiSlot, Reader, Slot
from sparsefleet.engine.batch_source import BatchFeed, BatchSource, DataPosition, PassStart
from sparsefleet.engine.training_progress import Resumed, WorkerReport
from sparsefleet.engine.workload import Batch
from sparsefleet.errors import ConfigError
from sparsefleet.train.module_workload import as_batch

FORMAT = MultiSlot(Slot("id", "uint64", ()))


def write_ids(path: Path, ids: range) -> Path:
    path.write_text("".join(f"1 {i}\n" for i in ids))
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [write_ids(tmp_path / f"part-{n}", range(10 * n, 10 * n + 10)) for n in range(4)]


def ids_of(batch: Any) -> list[int]:
    ids = batch.inputs["id"] if isinstance(batch.inputs, dict) else batch.inputs
    return [int(i) for i in ids]


def unlabelled(raw: Any, number: int) -> Batch:
    return as_batch(raw, number, labelled=False)


def rest_of(feed: BatchFeed) -> list[list[int]]:
    return [ids_of(batch) for batch in iter(feed.take, None)]


def saved(feed: BatchFeed) -> DataPosition:
    """Return the state as a checkpoint would store it."""
    return DataPosition.from_json(json.loads(json.dumps(feed.position().to_json())))


@pytest.mark.parametrize("kind", ["reader", "memory", "function", "list", "loader"])
def test_a_pass_resumes_with_the_batch_after_the_last_given(kind: str, files: list[Path]) -> None:
    def data() -> Any:
        if kind == "memory":
            made = MemoryData(Reader(files, FORMAT, 7))
            made.local_shuffle(3)
            return made
        if kind == "function":
            return lambda: Reader(files, FORMAT, 7)
        if kind == "loader":
            return DataLoader(torch.arange(40), batch_size=7, shuffle=True)  # type: ignore[arg-type]
        if kind == "list":
            return list(torch.arange(40).split(7))
        return Reader(files, FORMAT, 7)

    torch.manual_seed(5)
    feed = BatchSource(data(), unlabelled).begin_pass()
    for _ in range(2):
        feed.take()
    position = saved(feed)
    wanted = rest_of(feed)
    assert sum(map(len, wanted)) == 26
    torch.manual_seed(77)
    again = BatchSource(data(), unlabelled).begin_pass(PassStart(positions=[position]))
    assert again.position().batches == (2 if kind in ("list", "loader") else 0)
    assert rest_of(again) == wanted


def test_a_position_can_be_taken_twice_in_one_pass(files: list[Path]) -> None:
    batches = list(torch.arange(40).split(5))
    first = BatchSource(batches, unlabelled).begin_pass()
    first.take()
    second = BatchSource(batches, unlabelled).begin_pass(PassStart(positions=[saved(first)]))
    second.take()
    third = BatchSource(batches, unlabelled).begin_pass(PassStart(positions=[saved(second)]))
    assert rest_of(third)[0] == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_reader_resumes_with_another_number_of_workers(workers: int, files: list[Path]) -> None:
    positions, seen = [], []
    for index, taken in ((0, 2), (1, 9)):  # the second one has finished
        reader = Reader(files, FORMAT, 3, worker_index=index, worker_num=2)
        feed = BatchSource(reader, unlabelled).begin_pass()
        for _ in range(taken):
            batch = feed.take()
            seen += [] if batch is None else ids_of(batch)
        positions.append(saved(feed))
        reader.close()
    start = PassStart(positions=positions)
    for index in range(workers):
        reader = Reader(files, FORMAT, 3, worker_index=index, worker_num=workers)
        for ids in rest_of(BatchSource(reader, unlabelled).begin_pass(start)):
            seen += ids
    assert sorted(seen) == list(range(40))


def test_data_that_cannot_be_redistributed_starts_over(caplog: pytest.LogCaptureFixture) -> None:
    start = PassStart(positions=[DataPosition(batches=2), DataPosition(batches=1)])
    feed = BatchSource(list(torch.arange(6).split(2)), unlabelled).begin_pass(start)
    assert len(rest_of(feed)) == 3
    assert "the interrupted epoch starts over" in caplog.text


def test_a_worker_that_was_through_has_nothing_left() -> None:
    start = PassStart(positions=[DataPosition(batches=3)], is_through=True)
    feed = BatchSource([(1, 2)] * 3, unlabelled).begin_pass(start)
    assert feed.take() is None
    assert feed.position().batches == 3


def test_data_that_is_shorter_than_what_was_trained_on_is_refused() -> None:
    def batches() -> Iterator[torch.Tensor]:
        yield torch.zeros(2)

    start = PassStart(positions=[DataPosition(batches=2)])
    with pytest.raises(ConfigError, match="has 1 batches.*made after 2"):
        BatchSource(batches, unlabelled).begin_pass(start)


def test_workers_that_share_files_resume_from_where_all_of_them_were(files: list[Path]) -> None:
    def workers() -> list[Reader]:
        sharding = LocalSharding(2)
        return [Reader(files, FORMAT, 3, sharding=sharding.member()) for _ in range(2)]

    before = workers()
    feeds = [BatchSource(reader, unlabelled).begin_pass() for reader in before]
    seen = [i for _ in range(2) for i in ids_of(feeds[0].take())]
    seen += [i for ids in rest_of(feeds[1]) for i in ids]  # it has finished, the other one has not
    reports = [
        WorkerReport(fit=1, epoch=0, position=saved(feed), is_through=feed.is_through)
        for feed in feeds
    ]
    assert [report.is_through for report in reports] == [False, True]
    for reader in before:
        reader.close()
    starts = [Resumed.of(reports, rank, 2).start for rank in range(2)]
    again = [
        BatchSource(reader, unlabelled).begin_pass(start)
        for reader, start in zip(workers(), starts, strict=True)
    ]
    assert not again[1].is_through
    for feed in reversed(again):
        seen += [i for ids in rest_of(feed) for i in ids]
    assert sorted(seen) == list(range(40))
