"""What is found in samples of data, by format."""

from __future__ import annotations

import gzip
from pathlib import Path

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from sparsefleet.errors import ConfigError, SparseFleetError
from sparsefleet.planning.data_sample import read_sample


def test_multi_slot_lines_are_understood_without_a_schema(tmp_path: Path) -> None:
    path = tmp_path / "part-0"
    lines = [f"2 0.5 0.25 3 {n} {n + 1} 7 1 {n % 2}\n" for n in range(100)]
    path.write_text("".join(lines))
    found = read_sample(str(path), batch=10)
    assert found.examples == 100
    assert found.columns == ("slot1", "slot2")
    assert found.ids_per_example == 4.0
    assert found.hottest_share == pytest.approx(0.25, abs=0.01)  # the id 7


def test_csv_columns_of_words_and_integers_are_ids(tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    lines = ["user,price,city,label"] + [f"{n},{n}.5,town{n % 3},1" for n in range(50)]
    path.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    found = read_sample(str(path), batch=10)
    assert found.columns == ("user", "city")
    assert found.distinct == 53


def test_other_separators_negative_ids_and_late_words_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    lines = ["user\tprice"] + [f"{n - 30}\t{n}.5" for n in range(100)] + ["unknown\t1.5"]
    path.write_text("\n".join(lines) + "\n")
    found = read_sample(str(path), batch=10)
    assert (found.columns, found.distinct) == (("user",), 101)


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    path = tmp_path / "excel.csv"
    path.write_text("\ufeffuser,item\n1,a\n2,b\n")
    assert read_sample(str(path), batch=2, label="user").columns == ("item",)


def test_a_label_that_is_not_a_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("user,item,price,clicked\n1,a,2.5,0\n2,b,3.5,1\n")
    assert read_sample(str(path), batch=2, label="price").ids_per_example == 3
    with pytest.raises(ConfigError, match=r"'cliked' is not a column .*, which has user, item"):
        read_sample(str(path), batch=2, label="cliked")


def test_parquet_lists_and_labels(tmp_path: Path) -> None:
    path = tmp_path / "day.parquet"
    table = pyarrow.table(
        {"ads": [[1, 2, 3]] * 20, "user": list(range(20)), "buys": [1] * 20, "age": [0.5] * 20}
    )
    pyarrow.parquet.write_table(table, path)
    found = read_sample(str(path), batch=5, label="buys")
    assert found.columns == ("ads", "user")
    assert found.distinct_per_batch == pytest.approx(8 / 20)


@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.large_string(),
        pyarrow.string_view(),
        pyarrow.binary(),
        pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    ],
    ids=str,
)
def test_words_are_ids_however_parquet_stores_them(kind: pyarrow.DataType, tmp_path: Path) -> None:
    """Polars writes large strings, pandas writes categories as dictionaries."""
    words = pyarrow.array([f"town{n % 3}" for n in range(50)])
    column = words.dictionary_encode() if pyarrow.types.is_dictionary(kind) else words.cast(kind)
    path = tmp_path / "day.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"city": column, "age": [0.5] * 50}), path)
    found = read_sample(str(path), batch=10)
    assert (found.columns, found.distinct) == (("city",), 3)


def test_arrow_streams_and_remote_files_are_read(tmp_path: Path) -> None:
    table = pyarrow.table({"user": list(range(30))})
    stream = tmp_path / "day.arrow"
    with (
        pyarrow.OSFile(str(stream), "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write(table)
    assert read_sample(str(stream), batch=10).distinct == 30
    remote = fsspec.filesystem("memory")
    remote.pipe("/sample/day.csv", b"user,city\n" + b"".join(b"%d,a\n" % n for n in range(30)))
    try:
        assert read_sample("memory://sample/day.csv", batch=10).distinct == 31
    finally:
        remote.rm("/sample", recursive=True)


@pytest.mark.parametrize("name", ["day.parquet", "day.arrow", "day.csv.gz"])
def test_a_damaged_file_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"nothing of the kind, but long enough to look at")
    with pytest.raises(SparseFleetError, match=name):
        read_sample(str(path), batch=10)


def test_skewed_ids_grow_slower_than_uniform_ones(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    found = {}
    for name, ids in (
        ("uniform", random.integers(0, 10**9, 20_000)),
        ("skewed", random.zipf(1.5, 20_000)),
    ):
        path = tmp_path / name
        path.write_text("".join(f"1 {number}\n" for number in ids))
        found[name] = read_sample(str(path), batch=500)
    assert found["uniform"].growth > 0.99
    assert found["skewed"].growth < 0.8
    assert found["skewed"].hot_share > 0.3 > found["uniform"].hot_share


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("empty", "", "is empty"),
        ("words", "this is no data\n", "is not MultiSlot"),
        ("only.csv", "a,b\n", "needs a line with column names, followed by records"),
        ("floats.csv", "a,b\n0.5,1.5\n", "no integer or string column"),
        ("floats", "2 0.5 0.5\n", "no id column"),
    ],
)
def test_data_without_ids_is_an_error_that_names_the_file(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        read_sample(str(path), batch=5)
    assert name in str(caught.value)


def test_a_missing_file_and_an_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(SparseFleetError, match="nothing-here"):
        read_sample(str(tmp_path / "nothing-here"), batch=5)
    path = tmp_path / "part"
    path.write_text("1 5\n")
    with pytest.raises(ConfigError, match="--format must be one of"):
        read_sample(str(path), batch=5, file_format="xml")
