"""Filters, hold-out splits and maps of a Reader."""

from __future__ import annotations

import gzip
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.data.data_files import ONE_ID, lines_of, read_ids, write_ids

from sparsefleet.data import (
    ArrowIpc,
    LocalSharding,
    MemoryData,
    MultiSlot,
    Reader,
    ReaderConfig,
    Records,
    Slot,
)
from sparsefleet.errors import ConfigError, DataError

ID = Slot("id", "uint64", ())


def odd(columns: dict[str, Any]) -> Any:
    return columns["id"] % 2 == 1


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_ids(tmp_path / "part-0", range(1000))


def test_a_filter_keeps_batches_full_and_in_order(file: Path) -> None:
    batches = [batch["id"].tolist() for batch in Reader(file, ONE_ID, 64).filter(odd)]
    assert [len(batch) for batch in batches] == [64] * 7 + [52]
    assert list(chain(*batches)) == list(range(1, 1000, 2))


def test_filters_add_up_and_leave_the_first_reader_alone(file: Path) -> None:
    reader = Reader(file, ONE_ID, 10)
    both = reader.filter(odd).filter(lambda columns: columns["id"] < 20)
    assert read_ids(both) == list(range(1, 20, 2))
    assert len(read_ids(reader)) == 1000
    assert both.stats().records == 10
    assert reader.stats().records == 1000


def test_a_filter_sees_every_kind_of_column(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_text("2 7 8 2 0.5 1.5 1 1\n1 6 2 2.5 3.5 1 0\n1 9 2 4.5 5.5 1 1\n")
    format_ = MultiSlot(Slot("ads"), Slot("dense", "float", (2,)), Slot("click", "float", ()))
    seen: list[dict[str, Any]] = []

    def clicked(columns: dict[str, Any]) -> Any:
        seen.append(columns)
        return columns["click"] > 0

    reader = Reader(path, format_, 8, label="click", config=ReaderConfig(layout="tuple"))
    [((ads, dense), clicks)] = list(reader.filter(clicked))
    assert ads[0].tolist() == [7, 8, 9]
    assert ads[1].tolist() == [0, 2]
    assert dense.tolist() == [[0.5, 1.5], [4.5, 5.5]]
    assert clicks.tolist() == [1.0, 1.0]
    assert set(seen[0]) == {"ads", "dense", "click"}


def test_a_filter_resumes_at_the_record_whatever_was_left_out(file: Path) -> None:
    for taken in range(9):
        reader = Reader(file, ONE_ID, 64).filter(odd)
        batches = iter(reader)
        first = [number for _ in range(taken) for number in next(batches)["id"].tolist()]
        state = reader.state_dict()
        reader.close()
        again = Reader(file, ONE_ID, 64).filter(odd)
        again.load_state_dict(state)
        assert first + read_ids(again) == list(range(1, 1000, 2)), taken


def test_positions_are_exact_among_bad_lines(tmp_path: Path) -> None:
    path = tmp_path / "part"
    lines = [f"1 {number}\n" if number % 7 else "nonsense\n" for number in range(500)]
    path.write_text("".join(lines))
    config = ReaderConfig(max_bad_lines=100, block_bytes=700)
    wanted = [number for number in range(500) if number % 7 and number % 2]
    for taken in (1, 3, 6):
        reader = Reader(path, ONE_ID, 16, config=config).filter(odd)
        batches = iter(reader)
        first = [number for _ in range(taken) for number in next(batches)["id"].tolist()]
        state = reader.state_dict()
        reader.close()
        again = Reader(path, ONE_ID, 16, config=config).filter(odd)
        again.load_state_dict(state)
        assert first + read_ids(again) == wanted


def test_a_failing_filter_is_named_with_the_file_and_its_records(file: Path) -> None:
    def broken(columns: dict[str, Any]) -> Any:
        raise KeyError("no such thing")

    named = "part-0, records 1 to 10: the function 'broken' passed to Reader.filter failed: .*no"
    with pytest.raises(DataError, match=named):
        list(Reader(file, ONE_ID, 10).filter(broken))
    with pytest.raises(DataError, match=r"returned int64\[10\], expected bool\[10\]"):
        list(Reader(file, ONE_ID, 10).filter(lambda columns: columns["id"]))
    with pytest.raises(DataError, match=r"returned bool\[1\], expected bool\[10\]"):
        list(Reader(file, ONE_ID, 10).filter(lambda columns: columns["id"][:1] > 0))
    with pytest.raises(ConfigError, match="takes a function, got a str"):
        Reader(file, ONE_ID, 10).filter("id > 3")  # type: ignore[arg-type]


def test_a_filter_that_leaves_nothing_is_told_but_is_no_error(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert list(Reader(file, ONE_ID, 10).filter(lambda columns: columns["id"] < 0)) == []
    assert "removed all of the 1000 records in 1 file(s)" in caplog.text


def test_a_split_is_complete_disjoint_and_about_as_large_as_asked(file: Path) -> None:
    train, held_out = Reader(file, ONE_ID, 32).split(validation=0.1)
    some, others = read_ids(train), read_ids(held_out)
    assert sorted(some + others) == list(range(1000))
    assert 60 < len(others) < 140
    assert read_ids(held_out) == others, "the same in each pass"
    other_seed = Reader(file, ONE_ID, 32).split(validation=0.1, seed=1)[1]
    assert read_ids(other_seed) != others


def test_a_split_depends_on_neither_files_nor_threads_nor_workers(
    tmp_path: Path, file: Path
) -> None:
    wanted = sorted(read_ids(Reader(file, ONE_ID, 32).split(validation=0.3)[1]))
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(4):
        (folder / f"part-{part}.gz").write_bytes(
            gzip.compress(lines_of(range(999 - part, -1, -4)).encode())
        )
    many = Reader(folder / "*", ONE_ID, 7, threads=3).split(validation=0.3)[1]
    assert sorted(read_ids(many)) == wanted
    found: list[int] = []
    sharding = LocalSharding(2)
    members = [sharding.member() for _ in range(2)]
    readers = [Reader(folder / "*", ONE_ID, 7, sharding=member) for member in members]
    splits = [reader.split(validation=0.3) for reader in readers]
    open_passes = [iter(train) for train, _ in splits]  # both sides may be read at once
    next(open_passes[0])
    for _, held_out in splits:
        found += read_ids(held_out)
    for one in open_passes:
        one.close()
    assert sorted(found) == wanted


def test_a_split_by_a_column_keeps_its_records_together(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_text("".join(f"1 {number} 1 {number % 40}\n" for number in range(800)))
    format_ = MultiSlot(ID, Slot("user", "uint64", ()))
    train, held_out = Reader(path, format_, 50).split(validation=0.25, by="user")
    users = [
        {int(user) for batch in reader for user in batch["user"]} for reader in (train, held_out)
    ]
    assert not users[0] & users[1]
    assert users[0] | users[1] == set(range(40))
    assert users[1]


def test_a_split_resumes(file: Path) -> None:
    whole = read_ids(Reader(file, ONE_ID, 16).split(validation=0.5)[0])
    train = Reader(file, ONE_ID, 16).split(validation=0.5)[0]
    batches = iter(train)
    first = [number for _ in range(5) for number in next(batches)["id"].tolist()]
    state = train.state_dict()
    train.close()
    again = Reader(file, ONE_ID, 16).split(validation=0.5)[0]
    again.load_state_dict(state)
    assert first + read_ids(again) == whole


@pytest.mark.parametrize("wrong", [0, 1, -0.1, 1.5, "0.1", None])
def test_a_wrong_fraction_is_refused(file: Path, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="validation must be between 0 and 1"):
        Reader(file, ONE_ID, 10).split(validation=wrong)


def test_wrong_seeds_and_columns_are_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match="seed must be an int"):
        Reader(file, ONE_ID, 10).split(validation=0.1, seed=-1)
    with pytest.raises(ConfigError, match=r"by must be one of the columns \['id'\], got 'user'"):
        Reader(file, ONE_ID, 10).split(validation=0.1, by="user")


def test_a_map_changes_batches_and_comes_last(file: Path) -> None:
    def doubled(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": 2 * batch["id"]}

    mapped = Reader(file, ONE_ID, 10).filter(odd).map(doubled)
    assert read_ids(mapped) == [2 * number for number in range(1, 1000, 2)]
    twice = mapped.map(doubled)
    assert next(iter(twice))["id"].tolist() == [4 * number for number in range(1, 20, 2)]
    for late in (lambda: mapped.filter(odd), lambda: mapped.split(validation=0.5)):
        with pytest.raises(ConfigError, match="call it first, as in reader"):
            late()


def test_a_failing_map_is_named(file: Path) -> None:
    def broken(batch: Any) -> Any:
        raise ValueError("not that")

    with pytest.raises(
        DataError, match=r"'broken' passed to Reader.map failed for a batch of 10 .*not"
    ):
        list(Reader(file, ONE_ID, 10).map(broken))


def test_records_in_memory_are_filtered_and_mapped(file: Path) -> None:
    reader = Reader(file, ONE_ID, 10).filter(odd).map(lambda batch: batch["id"].tolist())
    data = MemoryData(reader)
    assert data.num_records == 500
    assert list(chain(*data)) == list(range(1, 1000, 2))
    data.local_shuffle(seed=3)
    assert sorted(chain(*data)) == list(range(1, 1000, 2))


def test_other_formats_are_filtered(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.feather

    path = tmp_path / "day.feather"
    pyarrow.feather.write_feather(pa.table({"id": np.arange(100)}), path, chunksize=30)
    assert read_ids(Reader(path, ArrowIpc(ID), 8).filter(odd)) == list(range(1, 100, 2))

    def numbers() -> Any:
        for number in range(100):
            yield {"id": number}

    assert read_ids(Reader(None, Records(numbers, ID), 8).filter(odd)) == list(range(1, 100, 2))
