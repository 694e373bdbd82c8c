from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from sparsefleet.data import Csv, Field, Reader, ReaderConfig, Slot, hash64
from sparsefleet.errors import BadLineError, ConfigError, SchemaError

WITH_END = ReaderConfig(include_last_offset=True)


def test_fields_are_numbers_lists_and_texts_as_the_schema_says(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        'user,price,"the tags",city,unused\n'
        '7,0.5,3|4,"Köln, ""Altstadt""",x\n'
        "18446744073709551615,NA,,,\n"
    )
    format = Csv(  # noqa: A001
        Field("price", "float", (), missing=-1.0),
        Field("tags", columns="the tags", separator="|"),
        Field("city", "uint64", (), hash_seed=3),
        Slot("user", "uint64", ()),
        missing_texts=("", "NA"),
    )
    (batch,) = Reader(tmp_path / "a.csv", format, 10, config=WITH_END)
    assert list(batch) == ["price", "tags", "city", "user"]
    assert batch["price"].tolist() == [0.5, -1.0]
    assert [part.tolist() for part in batch["tags"]] == [[3, 4], [0, 2, 2]]
    wanted = [hash64('Köln, "Altstadt"', 3), hash64("", 3)]
    assert batch["city"].view(np.uint64).tolist() == wanted
    assert batch["user"].tolist() == [7, -1]


def test_columns_may_come_in_another_order_in_each_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "b.csv").write_text("\ufeffb,other,a\n6,x,5\n")
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"a,b\r\n7,8"))
    (tmp_path / "d.csv").write_text("b,a\n")
    (tmp_path / "e.csv").touch()
    pair = Field("pair", "uint64", (2,), columns=("a", "b"))
    reader = Reader(tmp_path / "*", Csv(pair), 3, threads=1)
    assert [batch["pair"].tolist() for batch in reader] == [[[1, 2], [3, 4], [5, 6]], [[7, 8]]]
    assert reader.stats().lines == 4
    assert reader.stats().files == 5


def test_files_without_a_header_have_names_or_numbers(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1;0.5;x\n2;0.25;y\n")
    named = Csv(Slot("b", "float", ()), header=("a", "b", "c"), separator=";")
    assert [batch["b"].tolist() for batch in Reader(tmp_path / "a", named, 9)] == [[0.5, 0.25]]
    numbered = Csv(Field("id", "uint64", (), columns=0), header=False, separator=";")
    assert [batch["id"].tolist() for batch in Reader(tmp_path / "a", numbered, 9)] == [[1, 2]]


def test_bad_lines_have_file_line_and_column_and_may_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,x\n1,0.5\n2,"0.5\n3,half\n4\n5,1,1\n6,1\n')
    format = Csv(Slot("id", "uint64", ()), Slot("x", "float", ()))  # noqa: A001
    with pytest.raises(BadLineError, match=r"a.csv, line 3, column 3: .*'x' \(2 of 2\) a closing"):
        list(Reader(path, format, 2))
    config = ReaderConfig(max_bad_lines=4, quarantine=tmp_path / "bad")
    reader = Reader(path, format, 2, config=config)
    assert [batch["id"].tolist() for batch in reader] == [[1, 6]]
    rows = [row.split("\t") for row in (tmp_path / "bad").read_text().splitlines()]
    assert [(row[1], row[2], row[4]) for row in rows] == [
        ("3", "3", '2,"0.5'),
        ("4", "3", "3,half"),
        ("5", "2", "4"),
        ("6", "4", "5,1,1"),
    ]


def test_a_state_resumes_behind_the_header(tmp_path: Path) -> None:
    for name, begin in (("a", 0), ("b", 5)):
        rows = "".join(f"{number}\n" for number in range(begin, begin + 5))
        (tmp_path / f"{name}.csv").write_text("id\n" + rows)
    format = Csv(Slot("id", "uint64", ()))  # noqa: A001
    for stop in range(4):
        reader = Reader(tmp_path / "*.csv", format, 3)
        batches = iter(reader)
        ids = [number for _ in range(stop) for number in next(batches)["id"].tolist()]
        again = Reader(tmp_path / "*.csv", format, 3)
        again.load_state_dict(reader.state_dict())
        reader.close()
        assert ids + [number for batch in again for number in batch["id"]] == list(range(10))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,c\n1,2\n", r"a.csv: no column called 'b', which slot 'b' needs; the file has \['a'"),
        ("a,b,b\n1,2,3\n", "2 columns called 'b'"),
        ("a\xff,b\n", "a.csv, line 1: expected column names separated by ','"),
        ('"a,b\n1,2\n', "line 1: expected column names"),
    ],
)
def test_headers_that_do_not_fit_are_errors(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text, encoding="latin-1")
    with pytest.raises(SchemaError, match=message):
        list(Reader(tmp_path / "a.csv", Csv(Slot("a"), Slot("b")), 2))


def test_a_number_beyond_the_columns_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2\n")
    with pytest.raises(SchemaError, match="has 2 columns, but slot 'id' needs column 2"):
        list(Reader(tmp_path / "a.csv", Csv(Field("id", columns=2), header=False), 2))


def test_schemas_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="Csv needs at least one slot"):
        Csv()
    with pytest.raises(ConfigError, match="two slots are named 'a'"):
        Csv(Slot("a"), Slot("a"))
    with pytest.raises(ConfigError, match="'d' with shape \\(3,\\) needs a separator"):
        Csv(Slot("d", "float", (3,)))
    with pytest.raises(ConfigError, match="needs a column number, got 'a'"):
        Csv(Slot("a"), header=False)
    with pytest.raises(SchemaError, match="'a' is used by two slots, 'a' and 'b'"):
        Csv(Slot("a"), Field("b", columns="a"), header=["a"])
    with pytest.raises(ConfigError, match="Csv.separator must be one ASCII character"):
        Csv(Slot("a"), separator="::")
    with pytest.raises(ConfigError, match="Csv.missing_texts must be a list"):
        Csv(Slot("a"), missing_texts="NA")
    with pytest.raises(ConfigError, match="Csv.header must"):
        Csv(Slot("a"), header="a,b")
    with pytest.raises(ConfigError, match="different separator than fields"):
        Csv(Field("a", separator=","))
    with pytest.raises(ConfigError, match="separator and quote"):
        Csv(Slot("a"), separator='"')


def test_fields_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="field 'a': hash_seed requires dtype 'uint64'"):
        Field("a", "float", hash_seed=1)
    with pytest.raises(ConfigError, match="field 'a': missing must be a 64-bit id"):
        Field("a", missing=2**64)
    with pytest.raises(ConfigError, match="field 'a': missing must be a number"):
        Field("a", "float", missing=float("inf"))
    with pytest.raises(ConfigError, match="several columns need a shape"):
        Field("a", columns=("b", "c"))
    with pytest.raises(ConfigError, match="columns must be unique"):
        Field("a", "float", (2,), columns=("b", "b"))
    with pytest.raises(ConfigError, match="separator must be one"):
        Field("a", separator="ab")
    with pytest.raises(ConfigError, match="columns must be"):
        Field("a", columns=())


def test_what_a_command_prints_has_the_header(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("7\n8\n")
    config = ReaderConfig(shell_command="echo id; cat")
    reader = Reader(tmp_path / "a", Csv(Slot("id", "uint64", ())), 2, config=config)
    assert [batch["id"].tolist() for batch in reader] == [[7, 8]]
