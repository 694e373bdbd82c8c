"""Examples from files, predictions into files, and the commands around them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from tests.unit.serving.export.shop_model import batch, exported_shop, needed
from torch import Tensor, nn

from sparsefleet.cli import main as cli
from sparsefleet.errors import ConfigError, FeedError, InputFileError, InputMissingError
from sparsefleet.serving import Predictor
from sparsefleet.serving.example_files import read_examples, write_predictions
from sparsefleet.serving.export import save_inference_model
from sparsefleet.serving.export.manifest import InputSchema, MissingInput, Schema

SIZE = 7


def rows_of(inputs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one object per example, with lists for multiple values."""
    columns = {}
    for name, value in inputs.items():
        if isinstance(value, tuple):
            values, offsets = value
            parts = np.split(values, offsets[1:] if len(offsets) == SIZE else offsets[1:-1])
            columns[name] = [part.tolist() for part in parts]
        else:
            columns[name] = value.tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the same examples in all formats."""
    folder = tmp_path_factory.mktemp("examples")
    rows = rows_of(needed(batch(SIZE, seed=3), "user", "label"))
    (folder / "e.json").write_text(json.dumps(rows), encoding="utf-8")
    (folder / "e.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    table = pandas.DataFrame(rows)
    table.to_parquet(folder / "e.parquet")
    table.map(lambda cell: " ".join(map(str, cell))).to_csv(folder / "e.csv", index=False)
    return folder


@pytest.mark.parametrize("form", ["json", "jsonl", "parquet", "csv"])
@pytest.mark.parametrize("size", [3, 100])
def test_every_form_gives_the_same_examples(form: str, size: int, examples: Path) -> None:
    directory, manifest = exported_shop()
    predictor = Predictor(directory, engine="onnx")
    batches = list(read_examples(examples / f"e.{form}", manifest.schema, size))
    found = np.concatenate([predictor.predict_all(inputs)["chance"] for inputs in batches])
    wanted = predictor.predict_all(needed(batch(SIZE, seed=3), "user", "label"))["chance"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", ["json", "jsonl", "parquet", "csv"])
def test_predictions_are_written_in_every_form(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"p.{form}"
    write_predictions(path, {"p": np.array([0.5, 0.25]), "q": np.array([[1, 2], [3, 4]])})
    if form == "csv":
        assert path.read_text(encoding="utf-8") == "p,q\n0.5,1 2\n0.25,3 4\n"
        return
    if form == "parquet":
        read = pandas.read_parquet(path)
    else:
        read = pandas.read_json(path, lines=form == "jsonl")
    assert read["p"].tolist() == [0.5, 0.25]
    assert [list(row) for row in read["q"]] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"ids": [1, 2]}], "has no column 'n'; it has ids"),
        ([{"ids": [1, 2], "n": 1}, {"ids": [1], "n": 1}], "column 'ids': 2 examples have 3 values"),
        ([{"ids": [1, 2, 3], "n": 1}, {"ids": [1], "n": 1}], "examples have between 1 and 3"),
        ([{"ids": [1, 2], "n": None}], "1 examples have no value"),
        ([{"ids": [1, 2], "n": 0.5}], "column 'n': .*; expected n: int64"),
        ([{"ids": [1, 2], "n": "x"}], "column 'n'"),
    ],
)
def test_examples_that_do_not_fit_are_reported_by_column(
    rows: list[Any], message: str, tmp_path: Path
) -> None:
    schema = Schema(
        inputs=(
            InputSchema(name="ids", dtype="int64", shape=("batch", 2)),
            InputSchema(name="n", dtype="int64", shape=("batch",)),
        ),
        targets=(),
        lookups=(),
    )
    path = tmp_path / "e.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    with pytest.raises(FeedError, match=message):
        list(read_examples(path, schema, 10))


def test_files_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    schema = Schema(inputs=(), targets=(), lookups=())
    with pytest.raises(ConfigError, match="must end with one of .parquet, .csv, .json"):
        list(read_examples(tmp_path / "e.txt", schema, 1))
    with pytest.raises(InputMissingError, match="e.json: no such file"):
        list(read_examples(tmp_path / "e.json", schema, 1))
    for form in ("json", "parquet"):
        path = tmp_path / f"bad.{form}"
        path.write_text("{[", encoding="utf-8")
        with pytest.raises(InputFileError, match=f"cannot be read as {form}"):
            list(read_examples(path, schema, 1))


def test_keys_above_the_range_of_int64_are_taken_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    pandas.DataFrame({"id": np.array([2**64 - 1], np.uint64)}).to_parquet(path)
    one = InputSchema(name="id", dtype="int64", shape=("batch",))
    [found] = read_examples(path, Schema(inputs=(one,), targets=(), lookups=()), 5)
    np.testing.assert_array_equal(found["id"], [-1])


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def test_predict_command_prints_or_writes(
    examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, _ = exported_shop()
    assert run("predict", directory, "--examples", examples / "e.csv", "--batch", 2) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "chance"
    out = tmp_path / "out.parquet"
    assert run("predict", directory, "--examples", examples / "e.json", "--out", out) == 0
    assert capsys.readouterr().out == ""
    np.testing.assert_allclose(
        pandas.read_parquet(out)["chance"], np.array(printed[1:], np.float64), atol=1e-6
    )
    assert run("predict", directory, "--examples", examples / "none.csv") == 1
    assert "none.csv: no such file" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_file_without_examples_has_no_predictions(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, _ = exported_shop()
    empty = tmp_path / "empty.csv"
    empty.write_text("counts,items,tags,shops\n", encoding="utf-8")
    arguments = ("predict", directory, "--examples", empty, "--engine", engine)
    assert run(*arguments) == 0
    assert capsys.readouterr().out == "chance\n"
    assert run(*arguments, "--out", tmp_path / "p.parquet") == 0
    found = pandas.read_parquet(tmp_path / "p.parquet")
    assert list(found.columns) == ["chance"]
    assert found["chance"].dtype == np.float32


def test_target_that_is_not_of_examples_is_refused_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean()

    save_inference_model(tmp_path, Mean(), torch.ones(3, 2), onnx=False)
    (tmp_path / "x.csv").write_text("x\n1 2\n", encoding="utf-8")
    assert run("predict", tmp_path, "--examples", tmp_path / "x.csv") != 0
    assert "must have one value per example" in capsys.readouterr().err


def test_export_command_shows_and_verifies(capsys: pytest.CaptureFixture[str]) -> None:
    directory, manifest = exported_shop()
    assert run("export", "show", directory) == 0
    text = capsys.readouterr().out
    for wanted in ("items: int64[batch, 3]", "shops/all", "computed", "float32", manifest.graph):
        assert wanted in text
    assert run("export", "verify", directory) == 0
    assert f"{len(manifest.files)} files" in capsys.readouterr().out
    assert run("export", "show", directory / "nowhere") == 1
    assert "contains no exported model" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["predict", "export"])
def test_help_explains_the_commands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        run(command, "--help")
    assert ending.value.code == 0
    assert "DIRECTORY" in capsys.readouterr().out


@pytest.mark.parametrize("known_age", [1.5, 31])
@pytest.mark.parametrize("form", ["json", "parquet", "csv"])
def test_missing_numbers_are_replaced_as_in_training(
    form: str, known_age: float, tmp_path: Path
) -> None:
    inputs = (
        InputSchema(name="age", dtype="float32", shape=("batch",)),
        InputSchema(name="ad", dtype="int64", shape=("batch",)),
    )
    missing = (MissingInput(input="age", value=29.7), MissingInput(input="ad", value=7))
    schema = Schema(inputs=inputs, targets=(), lookups=(), filled=missing)
    rows = [{"age": known_age, "ad": None}, {"age": None, "ad": 3}]
    path = tmp_path / f"e.{form}"
    table = pa.Table.from_pylist(rows)
    if form == "json":
        path.write_text(json.dumps(rows))
    elif form == "parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        pyarrow.csv.write_csv(table, path)
    (found,) = read_examples(path, schema, 10)
    np.testing.assert_array_equal(found["age"], np.array([known_age, 29.7], np.float32))
    assert found["ad"].tolist() == [7, 3]
    with pytest.raises(FeedError, match="column 'ad': 1 examples have no value"):
        list(read_examples(path, replace(schema, filled=missing[:1]), 10))


ADS = Schema(
    inputs=(
        InputSchema(name="ad", dtype="int64", shape=("batch",)),
        InputSchema(name="tags", dtype="int64", shape=("tags",), offsets=("batch",)),
    ),
    targets=(),
    lookups=(),
)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("e.json", "[" * 100_000, "it is nested too deeply"),
        ("e.jsonl", '{"ad":' + "[" * 100_000, "it is nested too deeply"),
        ("e.json", '[{"ad": 1' + "0" * 30 + "}]", "too large"),
        ("e.json", '{"ad": [1, 2]}', "expected a list of objects"),
        ("e.json", "null", "expected a list of objects"),
        ("e.json", '[{"ad": 1}, 3]', "expected a list of objects"),
        ("e.csv", "ad,ad\n1,2\n", "'ad' more than once"),
        ("e.csv", "tags,tags\n1,2\n", "'tags' more than once"),
    ],
)
def test_files_that_hold_no_examples_are_refused(
    name: str, text: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputFileError, match=problem):
        list(read_examples(tmp_path / name, ADS, 10))


def test_a_column_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["ad", "ad"])
    pyarrow.parquet.write_table(table, tmp_path / "e.parquet")
    with pytest.raises((FeedError, InputFileError), match="ad"):
        list(read_examples(tmp_path / "e.parquet", ADS, 10))


def test_ids_of_64_bits_in_json_keep_their_bits(tmp_path: Path) -> None:
    row = {"ad": 2**64 - 1, "tags": [5, 2**63]}
    (tmp_path / "e.json").write_text(json.dumps([row]))
    [found] = read_examples(tmp_path / "e.json", ADS, 10)
    assert found["ad"].tolist() == [-1]
    assert found["tags"][0].tolist() == [5, -(2**63)]
