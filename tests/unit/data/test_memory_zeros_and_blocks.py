from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from tests.unit.data.data_files import ONE_ID, write_ids

from sparsefleet.data import MemoryData, MultiSlot, Reader, ReaderConfig, Slot
from sparsefleet.errors import ConfigError

WITH_END = ReaderConfig(include_last_offset=True)


def column_of(data: MemoryData, name: str) -> list[list[float]]:
    found = []
    for batch in data:
        values, offsets = batch[name]
        for begin, end in pairwise(offsets):
            found.append(values[begin:end].tolist())
    return found


def test_zeros_are_left_out_of_slots_without_shape(tmp_path: Path) -> None:
    """The example of Fluid: `3 0 0 7` gives [7]; an empty slot gets one 0."""
    path = tmp_path / "part"
    path.write_text("3 0 0 7 2 0.0000001 0.5 2 0 0\n2 0 0 1 -0.0000009 2 1 0\n1 5 1 0.25 2 0 3\n")
    slots = MultiSlot(Slot("ids"), Slot("weights", "float"), Slot("dense", "float", (2,)))
    plain = MemoryData(Reader(path, slots, 2, config=WITH_END))
    assert column_of(plain, "ids") == [[0, 0, 7], [0, 0], [5]]
    data = MemoryData(Reader(path, slots, 2, config=WITH_END), drop_zeros=True)
    assert column_of(data, "ids") == [[7], [0], [5]]
    assert column_of(data, "weights") == [[0.5], [0.0], [0.25]]
    assert [row for batch in data for row in batch["dense"].tolist()] == [[0, 0], [1, 0], [0, 3]]


def test_a_slot_of_zeros_only_has_one_in_each_record(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_text("2 0 0\n1 0\n")
    data = MemoryData(Reader(path, MultiSlot(Slot("ids")), 8, config=WITH_END), drop_zeros=True)
    assert column_of(data, "ids") == [[0], [0]]


@pytest.mark.parametrize("threads", [1, 3])
def test_records_are_in_the_order_of_the_files_whatever_the_threads(
    tmp_path: Path, threads: int
) -> None:
    for index in range(6):
        write_ids(tmp_path / f"part-{index}", range(index * 100, index * 100 + 37 * (index % 3)))
    wanted = [index * 100 + i for index in range(6) for i in range(37 * (index % 3))]
    data = MemoryData(Reader(tmp_path / "part-*", ONE_ID, 16, threads=threads))
    assert [key for batch in data for key in batch["id"].tolist()] == wanted


def test_batches_are_taken_from_blocks_in_turn(tmp_path: Path) -> None:
    write_ids(tmp_path / "part", range(10))
    data = MemoryData(Reader(tmp_path / "part", ONE_ID, 2), num_blocks=3)
    batches = [batch["id"].tolist() for batch in data]
    assert batches == [[0, 1], [4, 5], [7, 8], [2, 3], [6], [9]]
    assert len(data) == 6
    dropped = ReaderConfig(drop_last=True)
    data = MemoryData(Reader(tmp_path / "part", ONE_ID, 2, config=dropped), num_blocks=3)
    assert [batch["id"].tolist() for batch in data] == [[0, 1], [4, 5], [7, 8], [2, 3]]
    assert len(data) == 4


def test_a_state_resumes_in_the_midst_of_a_turn(tmp_path: Path) -> None:
    write_ids(tmp_path / "part", range(23))
    reader = Reader(tmp_path / "part", ONE_ID, 2)
    wanted = [batch["id"].tolist() for batch in MemoryData(reader, num_blocks=4)]
    for stop in range(len(wanted)):
        data = MemoryData(reader, num_blocks=4)
        batches = iter(data)
        given = [next(batches)["id"].tolist() for _ in range(stop)]
        again = MemoryData(reader, num_blocks=4)
        again.load_state_dict(data.state_dict())
        assert given + [batch["id"].tolist() for batch in again] == wanted
    with pytest.raises(ConfigError, match="has 4 blocks of records, but this data has 2"):
        MemoryData(reader, num_blocks=2).load_state_dict(data.state_dict())


def test_many_threads_may_take_from_one_pass(tmp_path: Path) -> None:
    write_ids(tmp_path / "part", range(5000))
    data = MemoryData(Reader(tmp_path / "part", ONE_ID, 7), num_blocks=3)
    data.local_shuffle(seed=1)
    batches = iter(data)
    with ThreadPoolExecutor(4) as pool:
        taken = [pool.submit(lambda: [key for b in batches for key in b["id"]]) for _ in range(4)]
        found = [int(key) for future in taken for key in future.result()]
    assert sorted(found) == list(range(5000))
    assert data.stats().records == 5000


def test_slots_change_owners_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_text("".join(f"1 {key} 1 {key} 1 {key} 1 {key}\n" for key in range(50)))
    names = ("key", "one", "two", "three")
    slots = MultiSlot(*[Slot(name, "uint64", ()) for name in names])
    data = MemoryData(Reader(path, slots, 50))
    data.local_shuffle(seed=3)
    data.shuffle_slots(["one", "two"], seed=4)
    (batch,) = data
    keys, one, two, three = (batch[name].tolist() for name in names)
    assert keys == three
    assert one == two != keys
    assert sorted(one) == list(range(50))
    data.shuffle_slots([])
    (batch,) = data
    assert batch["one"].tolist() == keys
    with pytest.raises(ConfigError, match="no slot is called 'four'"):
        data.shuffle_slots(["four"])


def merged(path: Path, text: str, merge_size: int) -> tuple[dict[str, tuple], int]:
    path.write_text(text)
    slots = MultiSlot(Slot("line", "text"), Slot("a"), Slot("b"), Slot("click", "float", (2,)))
    data = MemoryData(Reader(path, slots, 100, config=WITH_END), drop_zeros=True)
    dropped = data.merge_by_text("line", merge_size)
    records = zip(column_of(data, "a"), column_of(data, "b"), strict=True)
    rows = [row for batch in data for row in batch["click"].tolist()]
    lines = [bytes(line).decode() for line in column_of(data, "line")]  # type: ignore[arg-type]
    found = {line: (*record, row) for line, record, row in zip(lines, records, rows, strict=True)}
    return found, dropped


def test_records_of_equal_text_become_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = (
        "1 y 2 4 5 1 0 2 0 0\n"  # with the next: a of one, b of the other, the click that is set
        "1 x 1 7 1 0 2 0 1\n"
        "1 y 1 0 1 9 2 1 0\n"
        "1 alone 1 1 1 1 2 0 0\n"
        "1 x 1 0 1 8 2 0 0\n"
        "1 both 1 3 1 0 2 0 0\n"  # with the next: both have a
        "1 both 1 4 1 1 2 0 0\n"
    )
    found, dropped = merged(tmp_path / "part", text, 2)
    assert found == {"x": ([7], [8], [0, 1]), "y": ([4, 5], [9], [1, 0])}
    assert dropped == 3
    assert "dropping 1 records, since their 1 groups do not have 2 records" in caplog.text
    assert "dropping 2 records, since their 1 groups have more than one record with slot 'a'" in (
        caplog.text
    )
    found, dropped = merged(tmp_path / "part", text, 0)
    assert sorted(found) == ["alone", "x", "y"]
    assert dropped == 2
    assert merged(tmp_path / "part", "1 x 1 1 1 1 2 0 0\n", 2) == ({}, 1)
