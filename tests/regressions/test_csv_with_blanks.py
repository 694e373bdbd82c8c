"""Separated text with spaces around its fields, as in many public data sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsefleet.data import Csv, Field, Reader, Slot, hash_ids
from sparsefleet.errors import BadLineError

FORMAT = Csv(Field("job", "uint64", (), hash_seed=0), Slot("age", "float", ()))


def only_batch(path: Path, format: Csv = FORMAT) -> dict[str, list[float]]:  # noqa: A002
    (batch,) = Reader(path, format, 10)
    return {name: column.tolist() for name, column in batch.items()}


def test_spaces_around_fields_and_names_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "adult.csv"
    path.write_text('age, job \n39, Sales\n 40 ,"Sales" \n41, " Sales" \n42, \n')
    assert only_batch(path) == {
        "job": hash_ids(["Sales", "Sales", " Sales", ""]).tolist(),
        "age": [39, 40, 41, 42],
    }


def test_a_separating_space_is_not_padding(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("39  7\n")
    fields = (Slot("age", "float", ()), Field("gap", "float", (), missing=-1))
    format = Csv(*fields, Slot("n", "float", ()), header=["age", "gap", "n"], separator=" ")  # noqa: A001
    assert only_batch(path, format) == {"age": [39], "gap": [-1], "n": [7]}


def test_fields_that_are_not_numbers_are_shown_without_spaces(tmp_path: Path) -> None:
    path = tmp_path / "adult.csv"
    path.write_text("age,job\n <=50K,x\n")
    with pytest.raises(BadLineError, match="line 2, column 2: .*'age'.*found '<=50K'"):
        only_batch(path)
