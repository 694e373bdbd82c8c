from __future__ import annotations

import gc
import random
import threading
from collections import Counter
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.unit.data.data_files import ONE_ID, lines_of, read_ids, write_ids

from sparsefleet.data import CriteoTsv, MultiSlot, Reader, ReaderConfig, Slot
from sparsefleet.errors import ConfigError

TWO = MultiSlot(Slot("ads"), Slot("click", "float", ()))


def reading_threads() -> list[threading.Thread]:
    return [
        thread for thread in threading.enumerate() if thread.name.startswith("sparsefleet-read")
    ]


def test_batches_go_over_the_borders_of_files_and_only_the_last_is_short(tmp_path: Path) -> None:
    write_ids(tmp_path / "a", range(5))
    write_ids(tmp_path / "b", [])
    write_ids(tmp_path / "c", range(5, 11))
    reader = Reader(tmp_path / "*", ONE_ID, batch_size=4)
    assert [batch["id"].tolist() for batch in reader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    config = ReaderConfig(drop_last=True)
    assert len(list(Reader(tmp_path / "*", ONE_ID, 4, config=config))) == 2


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("block_bytes", [3, 1000])
def test_every_record_comes_once_whatever_the_threads(
    tmp_path: Path, threads: int, block_bytes: int
) -> None:
    rng = random.Random(threads)
    borders = [0, *sorted(rng.sample(range(3000), 6)), 3000]
    for index, (begin, end) in enumerate(pairwise(borders)):
        write_ids(tmp_path / f"part-{index}", range(begin, end))
    config = ReaderConfig(block_bytes=block_bytes, queue_batches=2)
    reader = Reader(tmp_path / "part-*", ONE_ID, 64, threads=threads, config=config)
    for _ in range(2):
        sizes = []
        ids: Counter[int] = Counter()
        for batch in reader:
            sizes.append(len(batch["id"]))
            ids.update(batch["id"].tolist())
        assert ids == Counter(range(3000))
        assert sum(size < 64 for size in sizes) <= threads


def test_one_thread_keeps_the_order_of_the_list(tmp_path: Path) -> None:
    files = [write_ids(tmp_path / f"part-{index}", [index, index + 10]) for index in (3, 1, 2)]
    assert read_ids(Reader(files, ONE_ID, 4)) == [3, 13, 1, 11, 2, 12]


def test_workers_read_parts_that_make_the_whole(tmp_path: Path) -> None:
    files = [write_ids(tmp_path / f"part-{index}", [index]) for index in range(5)]
    parts = [
        read_ids(Reader(files, ONE_ID, 4, worker_index=index, worker_num=7)) for index in range(7)
    ]
    assert parts == [[0], [1], [2], [3], [4], [], []]


def test_layouts_and_offsets_are_as_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_text("2 7 8 1 1\n1 9 1 0\n")

    def batch_of(label: str | None = None, **settings: object) -> object:
        config = ReaderConfig(**settings)  # type: ignore[arg-type]
        return next(iter(Reader(path, TWO, 2, label=label, config=config)))

    named = batch_of()
    assert list(named) == ["ads", "click"]
    assert [part.tolist() for part in named["ads"]] == [[7, 8, 9], [0, 2]]
    assert [part.tolist() for part in batch_of(include_last_offset=True)["ads"]] == [
        [7, 8, 9],
        [0, 2, 3],
    ]
    inputs, clicks = batch_of("click")
    assert list(inputs) == ["ads"]
    assert clicks.tolist() == [1, 0]
    (ads,), clicks = batch_of("click", layout="tuple")
    assert ads[0].tolist() == [7, 8, 9]
    ads, clicks = batch_of(layout="tuple")
    assert clicks.dtype == np.float32


def test_arrays_are_the_parsers_memory_and_outlive_the_reader(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "part", range(100))
    (batch,) = list(Reader(path, ONE_ID, 100))
    array = batch["id"]
    gc.collect()
    assert array.base is not None
    assert array.flags.writeable
    assert array.tolist() == list(range(100))
    array += 1
    assert array[0] == 1


def test_counts_tell_what_was_read(tmp_path: Path) -> None:
    text = lines_of(range(10)) + "bad\n"
    (tmp_path / "part").write_text(text)
    config = ReaderConfig(max_bad_lines=1)
    reader = Reader(tmp_path / "part", ONE_ID, 4, config=config)
    assert reader.stats().lines == 0
    for passes in (1, 2):
        list(reader)
        stats = reader.stats()
        assert (stats.files, stats.lines, stats.records) == (passes, 11 * passes, 10 * passes)
        assert (stats.batches, stats.bad_lines) == (3 * passes, passes)
        assert stats.bytes == len(text) * passes
    assert stats.producers_blocked_s >= 0
    assert stats.consumers_blocked_s > 0


def test_a_full_queue_stops_the_reading(tmp_path: Path) -> None:
    write_ids(tmp_path / "part", range(1000))
    config = ReaderConfig(queue_batches=2, block_bytes=64)
    reader = Reader(tmp_path / "part", ONE_ID, 10, config=config)
    batches = iter(reader)
    next(batches)
    assert reader.stats().records <= 10 * (1 + 2 + 1)
    assert [*batches][-1]["id"].tolist() == list(range(990, 1000))
    assert reader.stats().producers_blocked_s > 0


def test_leaving_the_loop_early_ends_the_threads(tmp_path: Path) -> None:
    files = [write_ids(tmp_path / f"part-{index}", range(1000)) for index in range(3)]
    config = ReaderConfig(queue_batches=1)
    reader = Reader(files, ONE_ID, 10, threads=3, config=config)
    for _ in reader:
        break
    gc.collect()
    assert not reading_threads()
    first = iter(reader)
    next(first)
    reader.close()
    assert list(first) == []
    assert not reading_threads()
    assert len(read_ids(reader)) == 3000


def test_many_consumers_share_one_pass(tmp_path: Path) -> None:
    write_ids(tmp_path / "a", range(500))
    write_ids(tmp_path / "b", range(500, 1000))
    batches = iter(Reader(tmp_path / "*", ONE_ID, 7, threads=2))
    taken: list[list[int]] = [[], [], []]

    def consume(mine: list[int]) -> None:
        for batch in batches:
            mine.extend(batch["id"].tolist())

    consumers = [threading.Thread(target=consume, args=(mine,)) for mine in taken]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(60)
    assert sorted(chain(*taken)) == list(range(1000))


def test_arguments_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "part", [1])
    with pytest.raises(ConfigError, match="batch_size must be an int >= 1, got 0"):
        Reader(path, ONE_ID, 0)
    with pytest.raises(ConfigError, match="threads must be an int >= 1, got True"):
        Reader(path, ONE_ID, 1, threads=True)
    with pytest.raises(ConfigError, match=r"label must be one of the columns \['label'"):
        Reader(path, CriteoTsv(), 1, label="click")
    with pytest.raises(ConfigError, match="only column"):
        Reader(path, ONE_ID, 1, label="id")
    with pytest.raises(ConfigError, match="format must be a RecordFormat, .* got 'parquet'"):
        Reader(path, "parquet", 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="ReaderConfig.queue_batches"):
        ReaderConfig(queue_batches=0)


def test_counts_of_a_pass_that_was_left_early_stay(tmp_path: Path) -> None:
    write_ids(tmp_path / "part", range(50))
    reader = Reader(tmp_path / "part", ONE_ID, 10)
    for _ in reader:
        break
    left_early = reader.stats()
    assert left_early.batches >= 1
    assert len(read_ids(reader)) == 50
    assert reader.stats().since(left_early).records == 50


def test_a_worker_whose_files_are_all_empty_has_an_empty_pass(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_ids(tmp_path / "part-0", range(5))
    write_ids(tmp_path / "part-1", [])
    for index, wanted in ((0, list(range(5))), (1, [])):
        reader = Reader(tmp_path / "part-*", ONE_ID, 2, worker_index=index, worker_num=2)
        assert read_ids(reader) == wanted
    assert "no records in 1 file(s)" in caplog.text
