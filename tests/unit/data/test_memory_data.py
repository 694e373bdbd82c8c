from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.data.data_files import ONE_ID, write_ids

from sparsefleet import _core
from sparsefleet.data import MemoryData, MultiSlot, Reader, ReaderConfig, Slot
from sparsefleet.errors import ConfigError, ShapeError

FORMAT = MultiSlot(
    Slot("key", "uint64", ()),
    Slot("one"),
    Slot("some"),
    Slot("weights", "float"),
    Slot("dense", "float", (2, 2)),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write 1000 records whose values are derived from their key."""
    lines = []
    for key in range(1000):
        rng = random.Random(key)
        some = [rng.randrange(2**64) for _ in range(rng.choice([1, 2, 5, 300 if key == 7 else 3]))]
        weights = [rng.randrange(100) / 4 for _ in range(rng.randint(1, 4))]
        parts = [[key], [key + 5], some, weights, [key, 1, 2, 3]]
        lines.append(" ".join(f"{len(part)} {' '.join(map(str, part))}" for part in parts))
    (tmp_path / "part").write_text("\n".join(lines))
    return tmp_path / "part"


def records_of(batches: Any) -> dict[int, tuple[Any, ...]]:
    """Return the records by key."""
    found = {}
    for batch in batches:
        for row, key in enumerate(batch["key"].tolist()):
            assert key not in found
            ragged = []
            for name in ("one", "some", "weights"):
                values, offsets = batch[name]
                ragged.append(values[offsets[row] : offsets[row + 1]].tolist())
            found[key] = (*ragged, batch["dense"][row].tolist())
    return found


WITH_END = ReaderConfig(include_last_offset=True)


def test_batches_equal_the_readers(path: Path) -> None:
    reader = Reader(path, FORMAT, 64, config=WITH_END)
    data = MemoryData(reader)
    assert data.num_records == 1000
    assert len(data) == 16
    for mine, wanted in zip(data, reader, strict=True):
        assert list(mine) == list(wanted)
        for name in mine:
            for left, right in zip(mine[name], wanted[name], strict=True):
                assert np.array_equal(left, right)
                assert left.dtype == right.dtype


def test_shuffling_keeps_every_record_whole(path: Path) -> None:
    data = MemoryData(Reader(path, FORMAT, 33, config=WITH_END))
    wanted = records_of(data)
    plain = [batch["key"].tolist() for batch in data]
    data.local_shuffle(seed=3)
    assert records_of(data) == wanted
    third = [batch["key"].tolist() for batch in data]
    assert third != plain
    data.local_shuffle(seed=4)
    assert [batch["key"].tolist() for batch in data] != third
    data.local_shuffle(seed=3)
    assert [batch["key"].tolist() for batch in data] == third
    data.local_shuffle()
    assert records_of(data) == wanted


def test_records_take_little_more_than_their_values(tmp_path: Path) -> None:
    lines = []
    for key in range(2000):
        ids = " ".join(["1"] * (1 + key % 3))
        lines.append(f"{1 + key % 3} {ids} 1 {key}")
    (tmp_path / "part").write_text("\n".join(lines))
    data = MemoryData(Reader(tmp_path / "part", MultiSlot(Slot("ragged"), Slot("one")), 100))
    ids = sum(1 + key % 3 for key in range(2000)) + 2000
    assert data.memory_bytes <= 1.3 * 8 * ids
    data.local_shuffle(seed=0)
    assert data.memory_bytes <= 1.3 * 8 * ids
    data.release_memory()
    assert data.memory_bytes == 0
    assert list(data) == []


def test_a_state_resumes_at_the_record_in_the_same_order(path: Path) -> None:
    data = MemoryData(Reader(path, FORMAT, 70, config=WITH_END))
    data.local_shuffle(seed=9)
    wanted = [batch["key"].tolist() for batch in data]
    batches = iter(data)
    given = [next(batches)["key"].tolist() for _ in range(4)]
    state = data.state_dict()
    again = MemoryData(Reader(path, FORMAT, 70, config=WITH_END))
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert given + [batch["key"].tolist() for batch in again] == wanted
    assert [batch["key"].tolist() for batch in again] == wanted
    assert again.state_dict()["given"] == [0]


def test_short_batches_labels_and_layouts_are_as_the_reader_says(tmp_path: Path) -> None:
    write_ids(tmp_path / "a", range(10))
    write_ids(tmp_path / "b", range(10, 15))
    config = ReaderConfig(drop_last=True, layout="tuple")
    data = MemoryData(Reader(tmp_path / "*", ONE_ID, 4, threads=2, config=config))
    assert data.num_records == 15
    assert [len(ids) for (ids,) in data] == [4, 4, 4]
    assert len(data) == 3


def test_states_of_other_data_are_refused(path: Path) -> None:
    data = MemoryData(Reader(path, FORMAT, 70))
    with pytest.raises(ConfigError, match="is for 5 records, but this data has 1000"):
        data.load_state_dict({**data.state_dict(), "num_records": 5})
    with pytest.raises(ConfigError, match="expected a MemoryData state"):
        data.load_state_dict({})
    with pytest.raises(ConfigError, match="seed must be"):
        data.local_shuffle(-1)


def test_native_gathering_reads_nothing_beyond_its_values() -> None:
    values = np.arange(5, dtype=np.float32)
    lengths = np.array([2, 4], np.uint8)
    marks = np.array([0], np.uint64)
    with pytest.raises(ShapeError, match="record 1 is not within"):
        _core.gather_ragged(values, lengths, marks, np.array([1], np.uint32))
    with pytest.raises(ShapeError, match="record 2 is not within"):
        _core.gather_ragged(values, lengths, marks, np.array([2], np.uint32))
    with pytest.raises(ShapeError, match="2 lengths need 1 marks, got 0"):
        _core.gather_ragged(values, lengths, marks[:0], np.array([0], np.uint32))
    with pytest.raises(ConfigError, match="lengths must be"):
        _core.gather_ragged(values, lengths.astype(np.int64), marks, np.array([0], np.uint32))


def ids_left(data: MemoryData, state: dict[str, Any]) -> list[int]:
    data.load_state_dict(state)
    return [int(number) for batch in data for number in batch["id"]]


def test_a_state_after_the_last_batch_has_nothing_left_of_the_pass(tmp_path: Path) -> None:
    write_ids(tmp_path / "part", range(10))
    data = MemoryData(Reader(tmp_path / "part", ONE_ID, 4), num_blocks=2)
    batches = iter(data)
    for _ in range(len(data)):
        next(batches)
    before_the_end = data.state_dict()
    assert next(batches, None) is None
    again = MemoryData(Reader(tmp_path / "part", ONE_ID, 4), num_blocks=2)
    assert ids_left(again, before_the_end) == []
    assert ids_left(again, data.finished_state_dict()) == []
    assert sorted(ids_left(again, data.state_dict())) == list(range(10))
    again.load_state_dict(before_the_end)
    assert again.state_dict() == before_the_end


@pytest.mark.parametrize("was_loaded", [False, True])
def test_the_place_in_one_order_does_not_hold_in_another(tmp_path: Path, was_loaded: bool) -> None:
    write_ids(tmp_path / "part", range(10))
    data = MemoryData(Reader(tmp_path / "part", ONE_ID, 4))
    next(iter(data))
    if was_loaded:
        data.load_state_dict(data.state_dict())
    data.local_shuffle(3)
    assert data.state_dict()["given"] == [0]
    assert sorted(ids_left(data, data.state_dict())) == list(range(10))
    next(iter(data))
    if was_loaded:
        data.load_state_dict(data.state_dict())
    data.release_memory()
    assert list(data) == []


@pytest.mark.parametrize(
    "wrong", [{"given": [11]}, {"given": [-1]}, {"given": None}, {"given": [1.5]}, {"seed": 3}]
)
def test_a_state_that_cannot_be_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    write_ids(tmp_path / "part", range(10))
    data = MemoryData(Reader(tmp_path / "part", ONE_ID, 4))
    with pytest.raises(ConfigError, match="state"):
        data.load_state_dict({**data.state_dict(), **wrong})
