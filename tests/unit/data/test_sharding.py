from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tests.unit.data.data_files import ONE_ID, read_ids, write_ids

from sparsefleet.data import LocalSharding, Reader, merge_states
from sparsefleet.data.progress import FileMark, FileToRead
from sparsefleet.data.sharding import WorkLists
from sparsefleet.errors import ConfigError, PeerLostError

NUM_FILES = 9
IDS = range(NUM_FILES * 10)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [
        write_ids(tmp_path / f"part-{index}", range(index * 10, index * 10 + 10))
        for index in range(NUM_FILES)
    ]


def readers_of(files: list[Path], count: int, threads: int = 1) -> list[Reader]:
    sharding = LocalSharding(count)
    return [
        Reader(files, ONE_ID, 4, threads=threads, sharding=sharding.member()) for _ in range(count)
    ]


def ids_of(batches: Iterator[Any]) -> list[int]:
    return [int(number) for batch in batches for number in batch["id"]]


@pytest.mark.parametrize("threads", [1, 3])
def test_each_record_comes_once_in_each_epoch(files: list[Path], threads: int) -> None:
    readers = readers_of(files, 3, threads)
    for _ in range(3):
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(read_ids, readers))
        assert sorted(chain(*found)) == list(IDS)


def test_a_worker_that_is_free_gets_more(files: list[Path]) -> None:
    slow, fast = readers_of(files, 2)
    waits = iter(slow)
    first = next(waits)["id"].tolist()
    found = read_ids(fast)
    assert len(found) > len(IDS) // 2
    assert sorted(first + found + ids_of(waits)) == list(IDS)
    assert read_ids(slow) == list(IDS)  # a new epoch, and the other has not begun it
    assert read_ids(fast) == []


def test_what_a_worker_leaves_goes_to_others_from_where_it_was(files: list[Path]) -> None:
    leaver, stayer = readers_of(files, 2)
    with iter(leaver) as batches:
        given = next(batches)["id"].tolist()
    assert given == [0, 1, 2, 3]
    assert sorted(given + read_ids(stayer)) == list(IDS)


@pytest.mark.parametrize("resumed_workers", [1, 2, 4])
def test_another_number_of_workers_resumes(files: list[Path], resumed_workers: int) -> None:
    before = readers_of(files, 3)
    passes = [iter(reader) for reader in before]
    given: list[int] = []
    for taken, batches in enumerate(passes, start=1):
        given += ids_of(next(batches) for _ in range(taken))
    state = merge_states([reader.state_dict() for reader in before])
    for reader in before:
        reader.close()
    after = readers_of(files, resumed_workers)
    for reader in after:
        reader.load_state_dict(state)
    with ThreadPoolExecutor(resumed_workers) as pool:
        found = list(chain(*pool.map(read_ids, after)))
    assert sorted(given + found) == list(IDS)
    with ThreadPoolExecutor(resumed_workers) as pool:
        found = list(chain(*pool.map(read_ids, after)))
    assert sorted(found) == list(IDS)


def test_a_worker_that_is_over_keeps_what_it_read_in_the_state(files: list[Path]) -> None:
    ended, other = readers_of(files[:2], 2)
    batches = iter(other)
    given = next(batches)["id"].tolist()
    given += read_ids(ended)
    state = merge_states([ended.state_dict(), other.state_dict()])
    other.close()
    (again,) = readers_of(files[:2], 1)
    again.load_state_dict(state)
    assert sorted(given + read_ids(again)) == list(range(20))


def test_a_part_of_the_workers_and_sharding_do_not_go_together(files: list[Path]) -> None:
    with pytest.raises(ConfigError, match="but got both"):
        Reader(files, ONE_ID, 4, worker_num=2, sharding=LocalSharding(1).member())


FILES = [FileToRead("a"), FileToRead("b"), FileToRead("c")]


def test_readers_of_one_name_must_agree() -> None:
    lists = WorkLists()
    lists.begin("train", 1, "w0", 2, FILES)
    with pytest.raises(ConfigError, match="all workers must list the same files"):
        lists.begin("train", 1, "w1", 2, FILES[:2])
    with pytest.raises(ConfigError, match="w0 starts epoch 1 of 'train' after epoch 1"):
        lists.begin("train", 1, "w0", 2, FILES)
    with pytest.raises(ConfigError, match="epoch 7 of 'train' does not exist"):
        lists.take("train", 7, "w0")
    lists.take("train", 1, "w0")
    with pytest.raises(ConfigError, match="w1 reported records from a, which is being read by w0"):
        lists.report("train", 1, "w1", [FileMark("a", 0, 5)])


def test_files_of_a_lost_worker_end_the_job_or_continue() -> None:
    present = {"w0", "w1"}
    lists = WorkLists(lambda _, worker: worker in present)
    for worker in ("w0", "w1"):
        lists.begin("train", 1, worker, 2, FILES)
    assert lists.take("train", 1, "w1") == FileToRead("a")
    lists.report("train", 1, "w1", [FileMark("a", 0, 5)])
    assert lists.take("train", 1, "w0") == FileToRead("b")
    present.remove("w1")
    with pytest.raises(PeerLostError, match="w1 was lost while it read a in epoch 1 of 'train'"):
        lists.take("train", 1, "w0")
    assert lists.take("train", 1, "w0", keep_going=True) == FileToRead("a", ((0, 5),))
    assert lists.take("train", 1, "w0", keep_going=True) == FileToRead("c")
    assert lists.take("train", 1, "w0", keep_going=True) is None


def test_epochs_are_forgotten_when_all_have_left_them() -> None:
    lists = WorkLists()
    for epoch in range(1, 50):
        for worker in ("w0", "w1"):
            lists.begin("train", epoch, worker, 2, FILES)
            while lists.take("train", epoch, worker) is not None:
                pass
            lists.finish("train", epoch, worker)
    assert len(lists._lists) <= 2


class SlowShard:
    """Records the order of calls; reports block until they are released."""

    def __init__(self, files: list[FileToRead]) -> None:
        self._files = iter(files)
        self.calls: list[str] = []
        self.is_reporting = threading.Event()
        self.may_report = threading.Event()

    def take(self) -> FileToRead | None:
        return next(self._files, None)

    def report(self, marks: Sequence[FileMark]) -> None:
        self.is_reporting.set()
        assert self.may_report.wait(10)
        self.calls.append(f"report {len(marks)}")

    def finish(self) -> list[str]:
        self.calls.append("finish")
        return []

    def release(self) -> None:
        self.calls.append("release")


class SlowSharding:
    shard: SlowShard

    def begin(self, files: Sequence[FileToRead]) -> SlowShard:
        self.shard = SlowShard(list(files))
        return self.shard


def test_a_shard_is_finished_after_the_last_report_of_any_consumer(tmp_path: Path) -> None:
    write_ids(tmp_path / "part", range(3))
    sharding = SlowSharding()
    batches = iter(Reader(tmp_path / "part", ONE_ID, 3, sharding=sharding))
    consumers = [threading.Thread(target=lambda: next(batches, None)) for _ in range(2)]
    consumers[0].start()
    assert sharding.shard.is_reporting.wait(10)
    consumers[1].start()
    consumers[1].join(0.2)  # it waits for the first one
    sharding.shard.may_report.set()
    for consumer in consumers:
        consumer.join(10)
    assert [call.split()[0] for call in sharding.shard.calls] == ["report", "finish"]
