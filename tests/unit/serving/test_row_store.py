"""Rows of a served model, in files or elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.serving.export.shop_model import batch, exported_shop, needed

from sparsefleet.errors import CheckpointMismatchError, CorruptFileError, StoreUnavailableError
from sparsefleet.serving import FileRows, Predictor, Tables

ENGINES = ["torch", "onnx"]


class CountingRows(FileRows):
    """Rows from files; records the requests. `away` makes them unavailable."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.asked: list[dict[str, Any]] = []
        self.away = False

    def tables(self, ids: Mapping[str, np.ndarray] | None = None) -> Tables:
        if self.away:
            raise StoreUnavailableError("the rows are away: wait")
        self.asked.append(dict(ids or {}))
        return super().tables()


class OtherRows(FileRows):
    version = "0123456789abcdef"

    def __init__(self) -> None:
        pass


def inputs() -> dict[str, Any]:
    return needed(batch(5, seed=3), "user", "label")


def test_known_tells_ids_with_a_row_from_others() -> None:
    directory, manifest = exported_shop()
    entry = manifest.table("tags")
    table = pa.ipc.open_file(directory / entry.file).read_all()
    keys = table.column("key").to_numpy()
    asked = np.concatenate([keys[::-1], keys + np.uint64(10**6), [np.uint64(2**64 - 1)]])
    found = FileRows(directory).tables()["tags"].known(asked)
    assert found.tolist() == [True] * len(keys) + [False] * (len(keys) + 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_prediction_asks_once_for_tables_and_names_the_ids_that_are_inputs(engine: Any) -> None:
    directory, _ = exported_shop()
    rows = CountingRows(directory)
    given = inputs()
    predictor = Predictor(directory, engine=engine, rows=rows)
    found = predictor.predict(given)
    np.testing.assert_array_equal(found, Predictor(directory, engine=engine).predict(given))
    [asked] = rows.asked
    assert sorted(asked) == ["shops/all", "tags"]  # ids of items are computed by the model
    np.testing.assert_array_equal(asked["tags"], given["tags"][0])


@pytest.mark.parametrize("engine", ENGINES)
def test_unavailable_rows_are_reported_and_come_back(engine: Any) -> None:
    directory, _ = exported_shop()
    rows = CountingRows(directory)
    predictor = Predictor(directory, engine=engine, rows=rows)
    rows.away = True
    with pytest.raises(StoreUnavailableError, match="the rows are away"):
        predictor.predict(inputs())
    rows.away = False
    predictor.predict(inputs())


def test_rows_of_another_export_are_refused() -> None:
    directory, manifest = exported_shop()
    message = f"is the export {manifest.digest}, but the given rows belong to 0123456789abcdef"
    with pytest.raises(CheckpointMismatchError, match=message):
        Predictor(directory, rows=OtherRows())


def test_files_of_rows_are_not_needed_where_rows_are_given(tmp_path: Path) -> None:
    directory, manifest = exported_shop()
    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    for entry in manifest.tables:
        (copy / entry.file).unlink()
    with pytest.raises(CorruptFileError, match="is missing"):
        Predictor(copy)
    assert Predictor(copy, rows=FileRows(directory)).check_golden() < 1e-6
