"""The same records in every format: all come back equal, wherever reading resumes."""

from __future__ import annotations

import csv
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparsefleet.data import (
    ArrowIpc,
    Csv,
    Field,
    MultiSlot,
    Parquet,
    Reader,
    ReaderConfig,
    RecordFormat,
    Records,
    Slot,
    arrow_format,
    hash64,
)

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
IDS = st.integers(0, 2**64 - 1)
Record = list[list[Any]]  # the values of each slot


@st.composite
def written_records(draw: st.DrawFn) -> tuple[list[Slot], list[Record]]:
    slots = []
    for index in range(draw(st.integers(1, 4))):
        shape = draw(st.sampled_from([None, (), (3,), (2, 2)]))
        slots.append(Slot(f"slot {index}", draw(st.sampled_from(["uint64", "float"])), shape))
    records: list[Record] = []
    for _ in range(draw(st.integers(1, 14))):
        sizes = [slot.width or draw(st.integers(1, 4)) for slot in slots]
        records.append(
            [
                draw(
                    st.lists(FLOATS if slot.dtype == "float" else IDS, min_size=size, max_size=size)
                )
                for slot, size in zip(slots, sizes, strict=True)
            ]
        )
    return slots, records


def as_table(slots: list[Slot], records: list[Record]) -> pa.Table:
    columns = {}
    for index, slot in enumerate(slots):
        kind = pa.float64() if slot.dtype == "float" else pa.uint64()
        values = [record[index] for record in records]
        if slot.shape == ():
            columns[slot.name] = pa.array([value for (value,) in values], kind)
        else:
            columns[slot.name] = pa.array(values, pa.list_(kind))
    return pa.table(columns)


def write_multi_slot(path: Path, slots: list[Slot], records: list[Record]) -> RecordFormat:
    with path.open("w") as file:
        for record in records:
            texts = (f"{len(values)} {' '.join(map(repr, values))}" for values in record)
            file.write(" ".join(texts) + "\n")
    return MultiSlot(*slots)


def write_csv(path: Path, slots: list[Slot], records: list[Record]) -> RecordFormat:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow([*(slot.name for slot in slots), "unused"])
        for record in records:
            writer.writerow([*("|".join(map(repr, values)) for values in record), 'a,"b"'])
    return Csv(
        *(
            Field(slot.name, slot.dtype, slot.shape, separator="" if slot.shape == () else "|")
            for slot in slots
        )
    )


def write_parquet(path: Path, slots: list[Slot], records: list[Record]) -> RecordFormat:
    pq.write_table(as_table(slots, records), path, row_group_size=4)
    return Parquet(*slots)


def write_feather(path: Path, slots: list[Slot], records: list[Record]) -> RecordFormat:
    pyarrow.feather.write_feather(as_table(slots, records), path, chunksize=4)
    return ArrowIpc(*slots)


def write_json(path: Path, slots: list[Slot], records: list[Record]) -> RecordFormat:
    path.write_text(json.dumps(records))

    def read(name: str) -> Iterator[dict[str, Any]]:
        for record in json.loads(Path(name).read_text()):
            yield {
                slot.name: values[0] if slot.shape == () else values
                for slot, values in zip(slots, record, strict=True)
            }

    return Records(read, *slots)


WRITERS = [write_multi_slot, write_csv, write_parquet, write_feather, write_json]


def as_bits(slots: list[Slot], records: list[Record]) -> list[list[bytes]]:
    return [
        [
            np.array(values, np.float32 if slot.dtype == "float" else np.uint64).tobytes()
            for slot, values in zip(slots, record, strict=True)
        ]
        for record in records
    ]


def records_in(slots: list[Slot], batch: dict[str, Any]) -> list[list[bytes]]:
    columns = []
    for slot in slots:
        if slot.shape is None:
            values, offsets = batch[slot.name]
            parts = [values[a:b] for a, b in itertools.pairwise(offsets)]
        else:
            values = parts = batch[slot.name]
            assert values.shape[1:] == slot.shape
        assert values.dtype == (np.float32 if slot.dtype == "float" else np.int64)
        columns.append([part.tobytes() for part in parts])
    return [list(record) for record in zip(*columns, strict=True)]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__[6:])
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(written_records(), st.integers(1, 5), st.integers(1, 3), st.integers(1, 40))
def test_records_come_back_as_written_from_wherever_reading_resumes(
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[..., RecordFormat],
    written: tuple[list[Slot], list[Record]],
    batch_size: int,
    threads: int,
    block_bytes: int,
) -> None:
    monkeypatch.setattr(arrow_format, "_PART_BYTES", 1)
    monkeypatch.setattr(arrow_format, "_CHUNK_ROWS", 3)
    monkeypatch.setattr(arrow_format, "_CHUNK_ROWS_OF_LISTS", 3)
    slots, records = written
    wanted = as_bits(slots, records)
    config = ReaderConfig(block_bytes=block_bytes, include_last_offset=True)
    with tempfile.TemporaryDirectory() as folder:
        half = len(records) // 2
        write(Path(folder) / "a", slots, records[:half])
        record_format = write(Path(folder) / "b", slots, records[half:])
        files = [f"{folder}/a", f"{folder}/b"]

        def reader(threads: int, batch_size: int = batch_size) -> Reader:
            return Reader(files, record_format, batch_size, threads=threads, config=config)

        whole = [records_in(slots, batch) for batch in reader(1)]
        assert [record for batch in whole for record in batch] == wanted
        assert all(len(batch) == batch_size for batch in whole[:-1])
        for stop in range(len(whole) + 1):  # islice does not look for the end of the pass
            first = reader(threads)
            batches = iter(first)
            found = []
            for batch in itertools.islice(batches, stop):
                found += records_in(slots, batch)
            state = json.loads(json.dumps(first.state_dict()))
            first.close()
            second = reader(threads, batch_size + 1)
            second.load_state_dict(state)
            found += [record for batch in second for record in records_in(slots, batch)]
            assert sorted(found) == sorted(wanted)
            assert threads > 1 or found == wanted


TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n"), max_size=12)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=20))
def test_texts_are_the_same_ids_in_every_format(rows: list[tuple[str, str]]) -> None:
    city = Field("city", "uint64", (), hash_seed=3)
    words = Field("words", hash_seed=4)
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/a.csv", "w", newline="", encoding="utf-8") as file:
            file.write('city,"words"\n')
            for row in rows:
                file.write(",".join('"' + text.replace('"', '""') + '"' for text in row) + "\n")
        columns = {"city": [row[0] for row in rows], "words": [row[1:] for row in rows]}
        pq.write_table(pa.table(columns), f"{folder}/a.parquet")
        table = pa.table({**columns, "city": pa.array(columns["city"]).dictionary_encode()})
        pyarrow.feather.write_feather(table, f"{folder}/a.feather")
        csv_words = Field("words", "uint64", (), hash_seed=4)
        found = [
            next(iter(reader))
            for reader in (
                Reader(f"{folder}/a.csv", Csv(city, csv_words, missing_texts=()), 100),
                Reader(f"{folder}/a.parquet", Parquet(city, words), 100),
                Reader(f"{folder}/a.feather", ArrowIpc(city, words), 100),
                Reader(None, Records(lambda: rows, city, words), 100),
            )
        ]
    for batch in found:
        ids = batch["words"][0] if isinstance(batch["words"], tuple) else batch["words"]
        assert batch["city"].view(np.uint64).tolist() == [hash64(row[0], 3) for row in rows]
        assert ids.view(np.uint64).tolist() == [hash64(row[1], 4) for row in rows]
