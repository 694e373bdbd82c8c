"""Columnar files with a few changed bytes give an error or records, never a crash."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from sparsefleet.data import ArrowIpc, Parquet, Reader, Slot
from sparsefleet.errors import DataError

SLOTS = (Slot("id", "uint64", ()), Slot("text"), Slot("list"), Slot("x", "float", ()))
TABLE = pa.table(
    {
        "id": range(300),
        "text": [f"text {i % 7}" for i in range(300)],
        "list": [[i] * (i % 4) for i in range(300)],
        "x": [i / 2 for i in range(300)],
    }
)


def write(path: Path, kind: str) -> None:
    if kind == "parquet":
        pq.write_table(TABLE, path, row_group_size=100)
    elif kind == "feather":
        pyarrow.feather.write_feather(TABLE, path, chunksize=100)
    else:
        make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as file, make(file, TABLE.schema) as writer:
            writer.write_table(TABLE, max_chunksize=100)


@pytest.mark.parametrize("kind", ["parquet", "feather", "file", "stream"])
def test_a_few_changed_bytes_give_an_error_or_records(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    write(path, kind)
    whole = path.read_bytes()
    record_format = Parquet(*SLOTS) if kind == "parquet" else ArrowIpc(*SLOTS)
    errors: list[str] = []
    for seed in range(80):
        rng = random.Random(seed)
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        path.write_bytes(changed)
        try:
            assert sum(len(batch["id"]) for batch in Reader(path, record_format, 64)) <= 300
        except DataError as error:
            errors.append(str(error))
    assert errors
    assert all(str(path) in error for error in errors)
