"""Random records through memory, blocks for other workers, and back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet.data import Slot
from sparsefleet.data.global_shuffle import RandomDealer, RecordBlock, pack_block, unpack
from sparsefleet.data.memory_data import drop_zeros, fill_empty
from sparsefleet.data.memory_records import CompactColumn, MemoryRecords, compact
from sparsefleet.data.record_source import TakenColumn

Record = tuple[Any, ...]
ids = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(width=32, allow_nan=False)
kinds = {
    "ids": (Slot("ids"), st.lists(ids, max_size=4)),
    "one": (Slot("one"), st.lists(ids, min_size=1, max_size=1)),
    "many": (Slot("many"), st.lists(ids, min_size=250, max_size=300)),
    "floats": (Slot("floats", "float"), st.lists(floats, max_size=4)),
    "dense": (Slot("dense", "float", (2,)), st.lists(floats, min_size=2, max_size=2)),
    "label": (Slot("label", "uint64", ()), st.lists(ids, min_size=1, max_size=1)),
    "text": (Slot("text", "text"), st.binary(min_size=1, max_size=9).map(list)),
}


@st.composite
def slots_and_records(draw: Any) -> tuple[list[Slot], list[Record]]:
    names = draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=4, unique=True))
    records = st.tuples(*(kinds[name][1] for name in names))
    return [kinds[name][0] for name in names], draw(st.lists(records, min_size=1, max_size=40))


def columns_of(slots: list[Slot], records: list[Record]) -> list[CompactColumn]:
    dtypes = {"uint64": np.int64, "float": np.float32, "text": np.uint8}
    columns = []
    for index, slot in enumerate(slots):
        values = [value for record in records for value in record[index]]
        array = np.array(values, dtypes[slot.dtype])
        if slot.shape is not None:
            columns.append((array.reshape(len(records), slot.width), None))
        else:
            lengths = [len(record[index]) for record in records]
            columns.append(compact((array, np.cumsum([0, *lengths]))))
    return columns


def records_of(taken: list[TakenColumn]) -> list[Record]:
    columns = []
    for values, offsets in taken:
        if offsets is None:
            columns.append(values.tolist())
        else:
            bounds = offsets.tolist()
            columns.append([values[a:b].tolist() for a, b in pairwise(bounds)])
    return list(zip(*columns, strict=True))


@settings(max_examples=150, deadline=None)
@given(slots_and_records(), st.integers(1, 4), st.integers(0, 99))
def test_dealt_records_are_the_records(
    given_records: tuple[list[Slot], list[Record]], num_workers: int, seed: int
) -> None:
    slots, records = given_records
    half = len(records) // 2
    parts = [columns_of(slots, part) for part in (records[:half], records[half:]) if part]
    held = MemoryRecords(slots, parts)
    dealer = RandomDealer(len(records), num_workers, (seed, 0))
    dealt: list[Record] = []
    wanted: list[Record] = []
    while held.num_records:  # from the end, as a shuffle gives them away
        begin = max(0, held.num_records - 7)
        ranks = dealer.ranks(begin, held.num_records)
        for rank in range(num_workers):
            chosen = np.flatnonzero(ranks == rank) + begin
            if len(chosen):
                taken = [compact(column) for column in held.take(chosen.astype(np.uint32))]
                block = unpack(pack_block(RecordBlock(0, 0, taken)), slots)
                assert isinstance(block, RecordBlock)
                arrived = MemoryRecords(slots, [list(block.columns)])
                dealt += records_of(arrived.take(np.arange(len(chosen), dtype=np.uint32)))
                wanted += [records[number] for number in chosen]
        held.truncate(begin)
    assert repr(dealt) == repr([tuple(map(_as_held, slots, record)) for record in wanted])


def _as_held(slot: Slot, values: list[Any]) -> list[Any]:
    if slot.dtype == "float":
        return np.array(values, np.float32).tolist()
    return values


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(-2, 2), max_size=4), min_size=1, max_size=20))
def test_zeros_go_and_one_comes_back_where_nothing_is_left(records: list[list[int]]) -> None:
    offsets = np.cumsum([0, *map(len, records)])
    values = np.array([value for record in records for value in record], np.int64)
    filled, bounds = fill_empty(*drop_zeros(values, offsets))
    found = [filled[a:b].tolist() for a, b in pairwise(bounds)]
    assert found == [[value for value in record if value] or [0] for record in records]
