from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.data.data_files import read_ids

from sparsefleet.data import Field, MemoryData, Reader, ReaderConfig, Records, Slot, hash64
from sparsefleet.errors import BadLineError, ConfigError, DataError, InputFileError

WITH_END = ReaderConfig(include_last_offset=True)
ID = Slot("id", "uint64", ())


def numbers_of(path: str) -> Iterator[dict[str, int]]:
    with open(path) as file:
        for line in file:
            yield {"id": int(line)}


def batch_of(records: list[Any], *slots: Slot, **settings: Any) -> dict[str, Any]:
    format = Records(lambda: records, *slots, **settings)  # noqa: A001
    (batch,) = Reader(None, format, 1000, config=WITH_END)
    named: dict[str, Any] = batch
    return named


def test_values_are_packed_as_their_slots_say() -> None:
    slots = (
        ID,
        Slot("ads"),
        Slot("dense", "float", (2, 2)),
        Field("city", "uint64", (), hash_seed=3),
        Field("age", "float", (), missing=-1.0),
    )
    first = {
        "id": 2**64 - 1,
        "ads": [],
        "dense": np.arange(4).reshape(2, 2),
        "city": "ulm",
        "age": None,
    }
    second = (-7, ("a", 5), [0.5, 1, True, np.float64(2)], b"ulm", float("nan"))
    batch = batch_of([first, second], *slots)
    assert batch["id"].tolist() == [-1, -7]
    assert batch["ads"][0].view(np.uint64).tolist() == [hash64("a"), 5]
    assert batch["ads"][1].tolist() == [0, 0, 2]
    assert batch["dense"].tolist() == [[[0, 1], [2, 3]], [[0.5, 1], [1, 2]]]
    assert batch["city"].view(np.uint64).tolist() == [hash64("ulm", 3)] * 2
    assert batch["age"].tolist() == [-1, -1]
    assert [batch[name].dtype for name in ("id", "dense")] == [np.int64, np.float32]


def test_batches_are_cut_and_copied() -> None:
    memory = np.zeros(5, np.float32)

    def batches() -> Iterator[Any]:
        for first in range(3):
            memory[:] = first
            lengths = np.array([0, 2, 2, 3, 3, 4], np.int32)
            yield {"x": memory, "ads": (np.arange(4, dtype=np.uint64) + first, lengths)}

    format = Records(batches, Slot("x", "float", ()), Slot("ads"), batches=True)  # noqa: A001
    found = list(Reader(None, format, 4, config=WITH_END))
    assert [batch["x"].tolist() for batch in found] == [
        [0, 0, 0, 0],
        [0, 1, 1, 1],
        [1, 1, 2, 2],
        [2, 2, 2],
    ]
    assert [part.tolist() for part in found[1]["ads"]] == [[3, 1, 2, 3], [0, 1, 3, 3, 4]]


def test_each_file_is_given_to_the_function(tmp_path: Path) -> None:
    for index in range(4):
        (tmp_path / f"part-{index}").write_text("".join(f"{index * 10 + n}\n" for n in range(6)))
    wanted = [index * 10 + n for index in range(4) for n in range(6)]
    reader = Reader(tmp_path / "part-*", Records(numbers_of, ID), 4)
    assert read_ids(reader) == wanted
    assert (reader.stats().files, reader.stats().lines, reader.stats().records) == (4, 24, 24)
    threads = Reader(tmp_path / "part-*", Records(numbers_of, ID), 4, threads=3)
    assert sorted(read_ids(threads)) == wanted
    workers = [
        Reader(tmp_path / "part-*", Records(numbers_of, ID), 4, worker_index=i, worker_num=3)
        for i in range(3)
    ]
    assert [number for reader in workers for number in read_ids(reader)] == wanted
    assert MemoryData(reader).num_records == 24


@pytest.mark.parametrize("in_batches", [False, True])
def test_a_state_resumes_at_the_record(in_batches: bool) -> None:
    def numbers() -> Iterator[Any]:
        for first in range(0, 20, 5):
            group = np.arange(first, first + 5)
            yield from [(group,)] if in_batches else [(number,) for number in group]

    format = Records(numbers, ID, batches=in_batches)  # noqa: A001
    for stop in range(7):
        reader = Reader(None, format, 3)
        batches = iter(reader)
        ids = [number for _ in range(stop) for number in next(batches)["id"].tolist()]
        again = Reader(None, format, 3)
        again.load_state_dict(reader.state_dict())
        reader.close()
        assert ids + read_ids(again) == list(range(20))
        assert read_ids(again) == list(range(20))


def test_workers_without_files_deal_the_records() -> None:
    format = Records(lambda: ((number,) for number in range(10)), ID)  # noqa: A001
    parts = [read_ids(Reader(None, format, 2, worker_index=i, worker_num=3)) for i in range(3)]
    assert parts == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


@pytest.mark.parametrize(
    ("record", "column", "message"),
    [
        ({"id": 1}, "'x'", r"a value for each of \['id', 'x'\], found \['id'\]"),
        ({"id": 1, "x": 1, "y": 1}, "'y'", "found .*'y'"),
        ((1,), "'id'", "a tuple of 2 values, found a tuple of 1"),
        (5, "'id'", "expected a dict, or a tuple of 2 values, found a int"),
        ((1.5, [1, 2]), "'id'", "a 64-bit id or a string, found 1.5"),
        ((2**64, [1, 2]), "'id'", "a 64-bit id or a string, found 18446744073709551616"),
        ((None, [1, 2]), "'id'", "a 64-bit id or a string, found None"),
        (([1], [1, 2]), "'id'", "numbers, not nested lists"),
        ((1, [1]), "'x'", "2 values, found 1"),
        ((1, "ab"), "'x'", "a number, found 'ab'"),
        ((1, [1, None]), "'x'", "a number, found None"),
        ((1, [1, 1e39]), "'x'", "a finite number of at most 3.4e38, found 1e\\+39"),
        ((1, [1, float("nan")]), "'x'", "a finite number .*found nan"),
        ((1, None), "'x'", "a list of values, found None"),
    ],
)
def test_a_record_that_does_not_fit_is_named_and_may_be_skipped(
    tmp_path: Path, record: Any, column: str, message: str
) -> None:
    def some() -> Iterator[Any]:
        yield (1, [0.5, 0.5])
        yield record
        yield {"id": 3, "x": (1, 1)}

    format = Records(some, ID, Slot("x", "float", (2,)))  # noqa: A001
    with pytest.raises(BadLineError, match=f"<some>, record 2, column {column}: .*{message}"):
        list(Reader(None, format, 10))
    config = ReaderConfig(max_bad_lines=1, quarantine=tmp_path / "bad")
    reader = Reader(None, format, 10, config=config)
    assert read_ids(reader) == [1, 3]
    assert (reader.stats().lines, reader.stats().bad_lines) == (3, 1)
    assert (tmp_path / "bad").read_text().split("\t")[:3] == ["<some>", "2", column]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"id": np.arange(3), "ads": np.arange(3)}, r"'ads': expected a pair \(values \[N\]"),
        ((np.arange(3), (np.arange(2), [0, 1, 2])), "expected 3 records, as in 'id', found 2"),
        ((np.arange(2), (np.arange(2), [0, 3, 2])), "offsets that rise from 0 to the 2 values"),
        ((np.ones((2, 1), int), (np.arange(2), [0, 1, 2])), r"an array \[B, \*\(\)\]"),
        ((np.ones(2), (np.arange(2), [0, 1, 2])), "a 64-bit id or a string, found 1.0"),
    ],
)
def test_a_batch_that_does_not_fit_is_an_error(batch: Any, message: str) -> None:
    format = Records(lambda: [batch], ID, Slot("ads"), batches=True)  # noqa: A001
    with pytest.raises(DataError, match=f"<<lambda>>, batch 1: column .*{message}"):
        list(Reader(None, format, 10))


def test_errors_of_the_function_have_file_and_record(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\nthree\n")
    reader = Reader(tmp_path / "a", Records(numbers_of, ID), 1)
    batches = iter(reader)
    assert [next(batches)["id"].tolist() for _ in range(2)] == [[1], [2]]
    with pytest.raises(DataError, match=r"a, record 3: the function .* ValueError: invalid") as got:
        next(batches)
    assert isinstance(got.value.__cause__, ValueError)
    with pytest.raises(DataError, match="<numbers_of>, record 1: .*TypeError"):
        list(Reader(None, Records(numbers_of, ID), 1))
    with pytest.raises(DataError, match="record 1: .*'int' object is not iterable"):
        list(Reader(None, Records(lambda: 5, ID), 1))  # type: ignore[arg-type,return-value]


def test_another_number_of_records_than_before_is_an_error() -> None:
    sizes = iter([10, 2])
    format = Records(lambda: ((n,) for n in range(next(sizes))), ID)  # noqa: A001
    reader = Reader(None, format, 4)
    next(iter(reader))
    state = reader.state_dict()
    reader.close()
    reader.load_state_dict(state)
    with pytest.raises(InputFileError, match="yielded 2 records, but 4 had been read"):
        list(reader)


def test_leaving_early_closes_an_endless_function() -> None:
    closed = threading.Event()

    def endless() -> Iterator[tuple[int]]:
        try:
            number = 0
            while True:
                number += 1
                yield (number,)
        finally:
            closed.set()

    reader = Reader(None, Records(endless, ID), 10)
    for batch in reader:
        assert batch["id"].tolist() == list(range(1, 11))
        break
    reader.close()
    assert closed.wait(10)


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a function that returns an iterator, got a list"):
        Records([1, 2], ID)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has columns or a separator"):
        Records(numbers_of, Field("id", columns="x"))
    with pytest.raises(ConfigError, match="its function opens the files"):
        Reader(None, Records(numbers_of, ID), 1, config=ReaderConfig(shell_command="cat"))
