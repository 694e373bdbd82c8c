from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pytest

from sparsefleet.data import ArrowIpc, Reader, Slot
from sparsefleet.errors import BadLineError, InputFileError, SchemaError

TABLE = pa.table({"unused": ["x"] * 100, "ads": [[i, i + 1] for i in range(100)], "id": range(100)})
FORMAT = ArrowIpc(Slot("id", "uint64", ()), Slot("ads"))


def write(path: Path, kind: str, table: pa.Table = TABLE) -> Path:
    if kind.startswith("feather"):
        compression = "uncompressed" if kind.endswith("plain") else "lz4"
        pyarrow.feather.write_feather(table, path, compression=compression, chunksize=17)
        return path
    with pa.OSFile(str(path), "wb") as file:
        make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with make(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=17)
    return path


@pytest.mark.parametrize("kind", ["file", "stream", "feather", "feather plain"])
def test_each_layout_gives_its_rows_and_resumes_at_any(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "a", kind)
    for stop in (0, 1, 2, 5):
        reader = Reader(path, FORMAT, 13)
        batches = iter(reader)
        first = [next(batches) for _ in range(stop)]
        again = Reader(path, FORMAT, 13)
        again.load_state_dict(reader.state_dict())
        reader.close()
        found = [*first, *again]
        assert [number for batch in found for number in batch["id"].tolist()] == [*range(100)]
        assert all(batch["id"].flags.writeable for batch in found)
        pairs = [number for batch in found for number in batch["ads"][0].tolist()]
        assert pairs == [number for i in range(100) for number in (i, i + 1)]


@pytest.mark.parametrize("kind", ["file", "stream", "feather"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda data: data[: len(data) // 2],
        lambda _: b"1 5\n1 6\n",
        lambda data: b"FEA1" + data[4:],
    ],
    ids=["empty", "truncated", "text", "feather 1"],
)
def test_damaged_files_are_errors_with_their_name(tmp_path: Path, kind: str, damage: Any) -> None:
    path = write(tmp_path / "a", kind)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        InputFileError, match="a: (not a valid Arrow IPC|this is a version 1 Feather file)"
    ):
        list(Reader(path, FORMAT, 10))


def test_offsets_that_lead_nowhere_are_found_before_they_are_used(tmp_path: Path) -> None:
    offsets = pa.py_buffer(pa.array([0, 2_000_000, 3], pa.int32()).buffers()[1].to_pybytes())
    lists = pa.Array.from_buffers(
        pa.list_(pa.int64()), 2, [None, offsets], children=[pa.array([1, 2, 3])]
    )
    path = write(tmp_path / "a", "file", pa.table({"id": [1, 2], "ads": lists}))
    with pytest.raises(InputFileError, match="a: not a valid Arrow IPC file"):
        list(Reader(path, FORMAT, 10))


def test_missing_columns_and_nulls_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "feather", pa.table({"id": [1, None], "ads": [[1], [2]]}))
    with pytest.raises(BadLineError, match="a, row 2, column 'id': expected a value, found null"):
        list(Reader(path, FORMAT, 10))
    path = write(tmp_path / "b", "stream", pa.table({"id": [1]}))
    with pytest.raises(SchemaError, match="b: no column called 'ads'"):
        list(Reader(path, FORMAT, 10))


def test_a_file_that_has_become_shorter_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "file")
    reader = Reader(path, FORMAT, 80)
    next(iter(reader))
    state = reader.state_dict()
    write(path, "file", TABLE.slice(0, 5))
    reader.load_state_dict(state)
    with pytest.raises(InputFileError, match="has 5 rows, but 80 had been read"):
        list(reader)
