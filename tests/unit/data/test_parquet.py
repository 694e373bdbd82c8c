from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsefleet.data import (
    Field,
    MemoryData,
    Parquet,
    Reader,
    ReaderConfig,
    Slot,
    arrow_format,
    hash64,
)
from sparsefleet.data.progress import FileToRead
from sparsefleet.errors import BadLineError, ConfigError, InputFileError, SchemaError

WITH_END = ReaderConfig(include_last_offset=True)
ONE_ID = Parquet(Slot("id", "uint64", ()))


def write(path: Path, columns: dict[str, Any], **settings: Any) -> Path:
    pq.write_table(pa.table(columns), path, **settings)
    return path


def batch_of(path: Path, *slots: Slot, **settings: Any) -> dict[str, Any]:
    config = ReaderConfig(include_last_offset=True, **settings)
    (batch,) = Reader(path, Parquet(*slots), 1000, config=config)
    named: dict[str, Any] = batch
    return named


def ids_of(text: list[str], seed: int = 0) -> list[int]:
    return [hash64(one, seed) for one in text]


def unsigned(array: Any) -> list[int]:
    numbers: list[int] = array.view(np.uint64).tolist()
    return numbers


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row group is a separate part, decoded in chunks of a few rows."""
    monkeypatch.setattr(arrow_format, "_PART_BYTES", 1)
    monkeypatch.setattr(arrow_format, "_CHUNK_ROWS", 3)
    monkeypatch.setattr(arrow_format, "_CHUNK_ROWS_OF_LISTS", 3)


@pytest.mark.parametrize(
    "kind",
    [pa.uint64(), pa.int64(), pa.int32(), pa.uint32(), pa.int16(), pa.uint8(), pa.bool_()],
    ids=str,
)
def test_integers_of_any_width_are_ids_and_floats(tmp_path: Path, kind: pa.DataType) -> None:
    path = write(tmp_path / "a", {"x": pa.array([0, 1, 1], pa.int8()).cast(kind)})
    batch = batch_of(path, Slot("x", "uint64", ()), Field("y", "float", (), columns="x"))
    assert batch["x"].dtype == np.int64
    assert batch["x"].tolist() == [0, 1, 1]
    assert batch["y"].dtype == np.float32
    assert batch["y"].tolist() == [0.0, 1.0, 1.0]


def test_ids_keep_all_64_bits(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a", {"u": pa.array([2**64 - 1, 0], pa.uint64()), "i": pa.array([-5, 2**62])}
    )
    batch = batch_of(path, Slot("u", "uint64", ()), Slot("i", "uint64", ()))
    assert batch["u"].tolist() == [-1, 0]
    assert batch["i"].tolist() == [-5, 2**62]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.float16()], ids=str)
def test_floats_of_any_width_are_float32(tmp_path: Path, kind: pa.DataType) -> None:
    values = pa.array(np.array([0.5, -2.25], kind.to_pandas_dtype()), kind)
    batch = batch_of(write(tmp_path / "a", {"x": values}), Slot("x", "float", ()))
    assert batch["x"].dtype == np.float32
    assert batch["x"].tolist() == [0.5, -2.25]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int8(), pa.string())],
    ids=str,
)
def test_texts_become_hashes_with_the_seed(tmp_path: Path, kind: pa.DataType) -> None:
    texts = ["köln", "", "köln", "ulm"]
    plain = pa.array([text.encode() for text in texts]) if pa.types.is_binary(kind) else texts
    path = write(tmp_path / "a", {"city": pa.array(plain).cast(kind)})
    batch = batch_of(
        path,
        Slot("city", "uint64", ()),
        Field("seeded", "uint64", (), columns="city", hash_seed=7),
        Field("ragged", columns="city"),
    )
    assert unsigned(batch["city"]) == ids_of(texts)
    assert unsigned(batch["seeded"]) == ids_of(texts, 7)
    assert unsigned(batch["ragged"][0]) == ids_of(texts)
    assert batch["ragged"][1].tolist() == [0, 1, 2, 3, 4]


def test_lists_are_ragged_or_of_the_shape(tmp_path: Path) -> None:
    lists = [[1, 2, 3], [4, 5, 6]]
    path = write(
        tmp_path / "a",
        {
            "ragged": pa.array([[7], [], [8, 9]][:2]),
            "large": pa.array([[1.5], [2.5, 3.5]], pa.large_list(pa.float64())),
            "fixed": pa.array(lists, pa.list_(pa.int64(), 3)),
            "plain": pa.array(lists),
            "texts": pa.array([["a", "b"], ["a"]]),
        },
    )
    batch = batch_of(
        path,
        Slot("ragged"),
        Slot("large", "float"),
        Slot("fixed", "uint64", (3,)),
        Slot("plain", "float", (3, 1)),
        Field("texts", hash_seed=2),
    )
    assert [part.tolist() for part in batch["ragged"]] == [[7], [0, 1, 1]]
    assert [part.tolist() for part in batch["large"]] == [[1.5, 2.5, 3.5], [0, 1, 3]]
    assert batch["large"][0].dtype == np.float32
    assert batch["fixed"].tolist() == lists
    assert batch["plain"].tolist() == [[[1], [2], [3]], [[4], [5], [6]]]
    assert unsigned(batch["texts"][0]) == ids_of(["a", "b", "a"], 2)


def test_columns_side_by_side_fill_a_shape_each_with_a_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"b": [3, 4], "a": [1.0, 2.0], "s": ["x", "y"], "t": ["x", "z"]})
    batch = batch_of(
        path,
        Field("ab", "float", (2,), columns=("a", "b")),
        Field("st", "uint64", (2,), columns=("s", "t"), hash_seed=0),
    )
    assert batch["ab"].tolist() == [[1, 3], [2, 4]]
    wanted = [[hash64("x", 0), hash64("x", 1)], [hash64("y", 0), hash64("z", 1)]]
    assert batch["st"].view(np.uint64).tolist() == wanted


def test_missing_values_are_filled_where_a_filling_is_given(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a",
        {
            "id": pa.array([1, None, 3]),
            "x": pa.array([None, float("nan"), 0.5]),
            "s": pa.array(["a", None, "b"]).dictionary_encode(),
            "list": pa.array([[1, None], None, []]),
            "pair": pa.array([[1.0, 2.0], None, [None, 3.0]]),
            "none": pa.nulls(3),
        },
    )
    batch = batch_of(
        path,
        Field("id", "uint64", (), missing=2**64 - 1),
        Field("x", "float", (), missing=-1.0),
        Field("s", "uint64", (), missing=5),
        Field("list", missing=9),
        Field("pair", "float", (2,), missing=8.0),
        Field("none", "float", (), missing=float("nan")),
    )
    assert batch["id"].tolist() == [1, -1, 3]
    assert batch["x"].tolist() == [-1, -1, 0.5]
    assert unsigned(batch["s"]) == [hash64("a"), 5, hash64("b")]
    assert [part.tolist() for part in batch["list"]] == [[1, 9, 9], [0, 2, 3, 3]]
    assert batch["pair"].tolist() == [[1, 2], [8, 8], [8, 3]]
    assert np.isnan(batch["none"]).all()


@pytest.mark.parametrize(
    ("column", "slot", "message"),
    [
        (
            pa.array([1, None]),
            Slot("x", "uint64", ()),
            "expected a value, found null; give a Field",
        ),
        (pa.array([1.0, None]), Slot("x", "float", ()), "expected a value, found null"),
        (pa.array(["a", None]), Slot("x"), "expected a value, found null"),
        (pa.array([1.0, np.nan]), Slot("x", "float", ()), "expected a value, found nan"),
        (pa.array([1.0, np.inf]), Slot("x", "float"), "a number of at most 3.4e38, found inf"),
        (pa.array([1.0, -1e39]), Slot("x", "float", ()), "of at most 3.4e38, found -1e\\+39"),
        (pa.array([[1], None]), Slot("x"), "expected a list, found null"),
        (pa.array([[1], [2, None]]), Slot("x"), "expected a value, found null"),
        (pa.array([[1, 2], [1]]), Slot("x", "uint64", (2,)), "a list of 2 values, found 1"),
        (pa.array([[1], [1, 2]]), Slot("x", "uint64", ()), "a list of 1 values, found 2"),
    ],
)
def test_a_row_that_does_not_fit_is_named_and_may_be_skipped(
    tmp_path: Path, column: pa.Array, slot: Slot, message: str
) -> None:
    good = column.slice(0, 1)
    path = write(tmp_path / "a", {"x": pa.concat_arrays([good, column, good])})
    with pytest.raises(BadLineError, match=rf"a, row 3, column 'x': .*{message}"):
        list(Reader(path, Parquet(slot), 10))
    config = ReaderConfig(max_bad_lines=1, quarantine=tmp_path / "bad", include_last_offset=True)
    reader = Reader(path, Parquet(slot), 10, config=config)
    (batch,) = reader
    (wanted,) = Reader(
        write(tmp_path / "b", {"x": pa.concat_arrays([good] * 3)}),
        Parquet(slot),
        10,
        config=WITH_END,
    )
    for left, right in zip(batch["x"], wanted["x"], strict=True):
        assert np.array_equal(left, right)
    stats = reader.stats()
    assert (stats.lines, stats.records, stats.bad_lines, stats.files) == (4, 3, 1, 1)
    row = (tmp_path / "bad").read_text().split("\t")
    assert row[:3] == [str(path), "3", "'x'"]
    assert '{"x": ' in row[4]


def test_batches_before_a_bad_row_come_first(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"id": pa.array([*range(7), None, 8])})
    batches = iter(Reader(path, ONE_ID, 3))
    assert [next(batches)["id"].tolist() for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(BadLineError, match="row 8"):
        next(batches)


@pytest.mark.parametrize(
    ("column", "slot", "message"),
    [
        (pa.array(["5"]), Slot("x", "float", ()), "type string, but slot 'x' needs floats or ints"),
        (pa.array([0.5]), Slot("x"), "type double, but slot 'x' needs ints or strings"),
        (pa.array([5]), Field("x", hash_seed=0), "type int64, but slot 'x' needs strings"),
        (pa.array([[["a"]]]), Slot("x"), "needs ints or strings, or lists of them"),
        (pa.array([5]), Slot("x", "uint64", (2,)), r"shape \(2,\) needs lists of 2 values"),
        (pa.array([{"y": 1}]), Slot("x"), "has type struct"),
        (pa.array([5]), Slot("y"), r"a: no column called 'y', which slot 'y' needs; .*\['x'\]"),
    ],
)
def test_schemas_that_do_not_fit_name_file_column_found_and_wanted(
    tmp_path: Path, column: pa.Array, slot: Slot, message: str
) -> None:
    path = write(tmp_path / "a", {"x": column})
    with pytest.raises(SchemaError, match=message):
        list(Reader(path, Parquet(slot), 10))


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-4] + b"PAR2",
        lambda _: b"1 5\n1 6\n",
        lambda data: data[:4] + b"\xff" * (len(data) // 2) + data[4 + len(data) // 2 :],
    ],
    ids=["empty", "truncated", "magic", "text", "garbage"],
)
def test_damaged_files_are_errors_with_their_name(tmp_path: Path, damage: Any) -> None:
    path = write(tmp_path / "a.parquet", {"id": list(range(10_000))}, compression="none")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputFileError, match="a.parquet: "):
        list(Reader(path, ONE_ID, 10))


def test_only_the_columns_of_the_slots_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a", {"id": list(range(100)), "big": ["x" * 1000] * 100}, compression="none"
    )
    reader = Reader(path, ONE_ID, 10)
    assert len(list(reader)) == 10
    assert reader.stats().bytes < 2000


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_share_the_row_groups_of_one_file(tmp_path: Path, threads: int) -> None:
    path = write(tmp_path / "a", {"id": list(range(1000))}, row_group_size=70)
    reader = Reader(path, ONE_ID, 16, threads=threads)
    for _ in range(2):
        sizes = [len(batch["id"]) for batch in reader]
        assert sum(size < 16 for size in sizes) <= threads
        assert sum(sizes) == 1000
    ids = [int(number) for batch in reader for number in batch["id"]]
    assert Counter(ids) == Counter(range(1000))
    assert threads > 1 or ids == list(range(1000))
    assert reader.stats().files == 3


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("threads", [1, 3])
def test_a_state_resumes_at_the_row(tmp_path: Path, threads: int) -> None:
    for name, begin in (("a", 0), ("b", 25)):
        write(tmp_path / name, {"id": list(range(begin, begin + 25))}, row_group_size=6)
    for stop in range(12):
        reader = Reader(tmp_path / "*", ONE_ID, 5, threads=threads)
        batches = iter(reader)
        ids = [number for _ in range(min(stop, 10)) for number in next(batches)["id"].tolist()]
        again = Reader(tmp_path / "*", ONE_ID, 4, threads=2 if threads > 1 else 1)
        again.load_state_dict(reader.state_dict())
        reader.close()
        ids += [int(number) for batch in again for number in batch["id"]]
        assert Counter(ids) == Counter(range(50))
        assert threads > 1 or ids == list(range(50))


def test_a_file_that_has_become_shorter_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"id": list(range(10))})
    reader = Reader(path, ONE_ID, 8)
    next(iter(reader))
    state = reader.state_dict()
    write(path, {"id": [1, 2]})
    reader.load_state_dict(state)
    with pytest.raises(InputFileError, match="has 2 rows, but 8 had been read"):
        list(reader)


def test_arrays_are_arrows_memory_and_may_be_written(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"id": list(range(100)), "x": np.ones(100, np.float32)})
    format = Parquet(Slot("id", "uint64", ()), Slot("x", "float", ()))  # noqa: A001
    first, second = Reader(path, format, 50)
    gc.collect()
    assert first["id"].flags.writeable
    assert np.shares_memory(first["x"].base, second["x"].base), "one column, cut and not copied"
    first["id"] += 1
    assert second["id"].tolist() == list(range(50, 100))


def test_remote_files_files_without_rows_and_data_in_memory(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for name, ids in (("a", [1, 2, 3]), ("b", []), ("c", [4])):
        write(tmp_path / name, {"id": pa.array(ids, pa.int64())})
        memory.pipe_file(f"/parquet-test/{name}", (tmp_path / name).read_bytes())
    reader = Reader("memory://parquet-test/*", ONE_ID, 2)
    data = MemoryData(reader)
    assert [batch["id"].tolist() for batch in data] == [[1, 2], [3, 4]]
    assert reader.stats().files == 3


def test_settings_for_text_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"id": [1]})
    with pytest.raises(ConfigError, match="Parquet files cannot be read through a pipe"):
        Reader(path, ONE_ID, 1, config=ReaderConfig(pipe_command=["cat"]))
    with pytest.raises(ConfigError, match="Parquet files have their own compression"):
        Reader(path, ONE_ID, 1, config=ReaderConfig(compression="gzip"))
    with pytest.raises(ConfigError, match="use a column name"):
        Parquet(Field("x", columns=0))
    with pytest.raises(ConfigError, match="files must be paths for Parquet, got None"):
        Reader(None, ONE_ID, 1)


def test_a_large_row_group_is_decoded_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_format, "_CHUNK_BYTES", 200_000)
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(0, 501) * 500, pa.int32()), pa.array(np.arange(250_000))
    )
    path = write(tmp_path / "a", {"x": lists})
    assert pq.ParquetFile(path).num_row_groups == 1
    record_format = Parquet(Slot("x"))
    (part,) = record_format.split(FileToRead(str(path)), ReaderConfig())
    with record_format.open_batches(part, ReaderConfig()) as rows:
        sizes = [batch.nbytes for batch in rows.batches]
    assert sum(sizes) > 2_000_000
    assert max(sizes) < 300_000
