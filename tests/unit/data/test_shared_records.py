"""Workers that share the records of each file: `ReaderConfig(share="records")`."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.data.data_files import ONE_ID, lines_of, read_ids, write_ids

from sparsefleet.data import (
    ArrowIpc,
    LocalSharding,
    Parquet,
    Reader,
    ReaderConfig,
    Records,
    Slot,
    merge_states,
)
from sparsefleet.errors import ConfigError

ID = Slot("id", "uint64", ())
SHARED = ReaderConfig(share="records", block_bytes=512)
Make = Callable[[int, int], Reader]
"""Returns the reader of worker `index` of `num`."""


def numbers(path: str = "") -> Iterator[dict[str, int]]:
    del path
    for number in range(300):
        yield {"id": number}


def batches_of_numbers() -> Iterator[dict[str, Any]]:
    for begin in range(0, 300, 25):
        yield {"id": np.arange(begin, begin + 25)}


@pytest.fixture(params=["gz", "parquet", "feather", "function", "no files", "batches"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Readers of the ids 0..299, in one file or from one function."""
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    kind, path = request.param, tmp_path / "part"
    table = pa.table({"id": np.arange(300)})
    if kind == "gz":
        path = tmp_path / "part.gz"
        path.write_bytes(gzip.compress(lines_of(range(300)).encode()))
    elif kind == "parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=70)
    elif kind == "feather":
        pyarrow.feather.write_feather(table, path, chunksize=70)
    else:
        path.touch()
    formats: dict[str, Any] = {
        "gz": ONE_ID,
        "parquet": Parquet(ID),
        "feather": ArrowIpc(ID),
        "function": Records(numbers, ID),
        "no files": Records(numbers, ID),
        "batches": Records(batches_of_numbers, ID, batches=True),
    }
    files = None if kind in ("no files", "batches") else path

    def new(index: int, num: int) -> Reader:
        return Reader(files, formats[kind], 8, config=SHARED, worker_index=index, worker_num=num)

    return new


def test_each_record_goes_to_one_worker(make: Make) -> None:
    for num in (1, 2, 3, 7):
        parts = [read_ids(make(index, num)) for index in range(num)]
        assert sorted(chain(*parts)) == list(range(300)), num
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def read_some(reader: Reader, num_batches: int) -> tuple[list[int], dict[str, Any]]:
    batches = iter(reader)
    found = [int(number) for _ in range(num_batches) for number in next(batches)["id"]]
    state = reader.state_dict()
    reader.close()
    return found, state


def test_each_worker_resumes_where_it_was(make: Make) -> None:
    for index in range(3):
        found, state = read_some(make(index, 3), 5)
        again = make(index, 3)
        again.load_state_dict(state)
        assert found + read_ids(again) == list(range(index, 300, 3))


@pytest.mark.parametrize("new_num", [1, 2, 3, 5])
def test_another_number_of_workers_resumes_the_rest(make: Make, new_num: int) -> None:
    begun = [read_some(make(index, 3), taken) for index, taken in enumerate((2, 9, 5))]
    found = [number for part, _ in begun for number in part]
    merged = merge_states(state for _, state in begun)
    more = []
    for index in range(new_num):
        reader = make(index, new_num)
        reader.load_state_dict(merged)
        some, state = read_some(reader, 2)  # and again, with yet another number
        found += some
        more.append(state)
    for index in range(4):
        reader = make(index, 4)
        reader.load_state_dicts(more)
        found += read_ids(reader)
        assert read_ids(reader) == list(range(index, 300, 4)), "the pass after it is complete"
    assert sorted(found) == list(range(300))


def test_the_state_of_one_worker_says_nothing_of_the_others(make: Make) -> None:
    found, state = read_some(make(0, 3), 5)
    rest = []
    for index in range(2):
        reader = make(index, 2)
        reader.load_state_dict(state)
        rest += read_ids(reader)
    assert sorted(found + rest) == list(range(300))


def test_a_worker_that_was_through_has_nothing_left_with_any_number(make: Make) -> None:
    ended = make(0, 2)
    found = read_ids(ended)
    some, state = read_some(make(1, 2), 3)
    reader = make(0, 1)
    reader.load_state_dicts([ended.state_dict(), state])
    assert sorted(found + some + read_ids(reader)) == list(range(300))


def test_a_bad_line_is_counted_by_one_worker(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_text("".join("x\n" if number == 10 else f"1 {number}\n" for number in range(30)))
    config = ReaderConfig(share="records", max_bad_lines=1)
    readers = [
        Reader(path, ONE_ID, 4, config=config, worker_index=index, worker_num=3)
        for index in range(3)
    ]
    found = [number for reader in readers for number in read_ids(reader)]
    assert sorted(found) == [number for number in range(30) if number != 10]
    assert [reader.stats().bad_lines for reader in readers] == [0, 1, 0]


def test_shares_filters_and_splits_go_together(make: Make) -> None:
    train, held_out = [], []
    for index in range(3):
        one, other = make(index, 3).split(validation=0.4)
        train += read_ids(one)
        held_out += read_ids(other)
    assert sorted(train + held_out) == list(range(300))
    assert sorted(held_out) == sorted(read_ids(make(0, 1).split(validation=0.4)[1]))


def test_workers_that_share_records_are_not_warned_of_equal_files(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "part", range(10))
    reader = Reader(path, ONE_ID, 4, config=SHARED, worker_index=0, worker_num=2)
    assert reader.own_files is None
    few = Reader(path, ONE_ID, 4, config=SHARED, worker_index=19, worker_num=20)
    assert list(few) == [], "more workers than records: a warning, not an error"


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "part", range(10))
    with pytest.raises(ConfigError, match="share must be 'files' or 'records', got 'lines'"):
        ReaderConfig(share="lines")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="use only one of them"):
        Reader(path, ONE_ID, 4, config=SHARED, sharding=LocalSharding(1).member())


@pytest.mark.parametrize("share", [[3, 3], [-1, 2], [0], "x", [0, 10**12]])
def test_a_damaged_share_in_a_state_is_refused(tmp_path: Path, share: object) -> None:
    reader = Reader(write_ids(tmp_path / "part", range(10)), ONE_ID, 4)
    state = {"version": 3, "is_over": False, "done": [], "records": {}, "share": share}
    with pytest.raises(ConfigError, match="expected a Reader state"):
        reader.load_state_dict(state)
