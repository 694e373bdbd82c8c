"""Rows on their way into a sorted file, and back by their keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparsefleet.errors import ConfigError, CorruptFileError, FeedError, NonFiniteError
from sparsefleet.serving.export import row_file
from sparsefleet.serving.export.export_directory import PendingExport
from sparsefleet.serving.export.manifest import ExportedTable, InitialValues
from sparsefleet.serving.export.quantization import RowFormat, check_format
from sparsefleet.serving.export.row_file import RowFile, write_rows
from sparsefleet.store import AdmitByCount, LocalStore, Normal, Rows, TableSpec

DIM = 3


def chunks(keys: np.ndarray, values: np.ndarray, size: int = 7) -> Iterator[Rows]:
    for begin in range(0, len(keys), size):
        part = slice(begin, begin + size)
        nothing = np.empty((len(keys[part]), 0))
        yield Rows(keys[part], values[part], nothing.astype("f4"), nothing.astype("u4"))


def written(
    directory: Path, keys: np.ndarray, values: np.ndarray, row_format: RowFormat = "float32"
) -> RowFile:
    with PendingExport(directory) as pending:
        path, num_rows, error = write_rows(
            pending, "rows-0", chunks(keys, values), table="ads", dim=DIM, row_format=row_format
        )
        moved = path.rename(directory / "kept.arrow")
    entry = ExportedTable(
        name="ads",
        dim=DIM,
        rows=num_rows,
        format=row_format,
        file=moved.name,
        initial=InitialValues(kind="normal", a=0.0, b=1.0, seed=5),
        largest_error=error.largest,
        mean_error=error.mean,
    )
    return RowFile(moved, entry)


def some_rows(count: int = 50) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    keys = rng.choice(2**62, count, replace=False).astype(np.uint64) * np.uint64(3)
    return keys, rng.normal(size=(count, DIM)).astype(np.float32)


@pytest.mark.parametrize("piece_rows", [1, 8, 1 << 16])
def test_file_is_sorted_and_every_key_finds_its_row(
    piece_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_file, "_PIECE_ROWS", piece_rows)
    keys, values = some_rows()
    rows = written(tmp_path, keys, values)
    np.testing.assert_array_equal(rows.look_up(keys.view(np.int64)), values)
    with pa.memory_map(str(tmp_path / "kept.arrow")) as source:
        table = pa.ipc.open_file(source).read_all()
    np.testing.assert_array_equal(table["key"].to_numpy(), np.sort(keys))
    assert table.schema.types == [pa.uint64(), pa.list_(pa.field("item", pa.float32(), False), DIM)]
    assert [path.name for path in tmp_path.iterdir()] == ["kept.arrow"]  # no scratch files are left


def test_ids_may_repeat_and_have_any_shape_and_padding_is_zeros(tmp_path: Path) -> None:
    keys, values = some_rows()
    rows = written(tmp_path, keys, values)
    ids = keys.view(np.int64)
    found = rows.look_up(np.array([[ids[3], ids[0]], [ids[3], ids[1]]]), padding_id=int(ids[0]))
    assert found.shape == (2, 2, DIM)
    np.testing.assert_array_equal(found[0, 0], values[3])
    np.testing.assert_array_equal(found[1, 0], values[3])
    np.testing.assert_array_equal(found[0, 1], np.zeros(DIM))
    assert rows.look_up(np.empty((0, 4), np.int64)).shape == (0, 4, DIM)


def test_unknown_ids_read_as_zeros_or_as_their_rows_would_start(tmp_path: Path) -> None:
    keys, values = some_rows()
    rows = written(tmp_path, keys, values)
    ids = np.array([1, -1, int(keys[0]), 2**62 + 1])
    np.testing.assert_array_equal(rows.look_up(ids)[[0, 1, 3]], np.zeros((3, DIM)))
    store = LocalStore()
    store.define(TableSpec(name="ads", dim=DIM, seed=5, initializer=Normal(0.0, 1.0)))
    wanted = store.pull("ads", ids)
    wanted[2] = values[0]
    np.testing.assert_array_equal(rows.look_up(ids, unknown="initial"), wanted)


def test_table_without_rows_is_a_file_as_well(tmp_path: Path) -> None:
    rows = written(tmp_path, np.empty(0, np.uint64), np.empty((0, DIM), np.float32))
    np.testing.assert_array_equal(rows.look_up(np.array([7])), np.zeros((1, DIM)))
    assert rows.entry.mean_error == 0.0


@pytest.mark.parametrize(("row_format", "steps"), [("float16", 2**-11), ("int8", 1 / 254)])
def test_narrow_formats_stay_within_half_a_step_and_report_it(
    row_format: RowFormat, steps: float, tmp_path: Path
) -> None:
    keys, values = some_rows(400)
    values[5] = 0.0
    rows = written(tmp_path, keys, values, row_format)
    read = rows.look_up(keys.view(np.int64))
    allowed = np.abs(values).max(axis=1, keepdims=True) * steps * 1.01
    assert (np.abs(read - values) <= allowed).all()
    np.testing.assert_array_equal(read[5], 0.0)
    error = np.abs(read.astype(np.float64) - values)
    assert rows.entry.largest_error == pytest.approx(error.max(), rel=1e-6)
    assert rows.entry.mean_error == pytest.approx(error.mean(), rel=1e-6)


@pytest.mark.parametrize(
    ("row_format", "value"),
    [("float16", 1e5), ("float16", np.nan), ("int8", np.inf), ("int8", np.finfo(np.float32).max)],
)
def test_values_that_a_narrow_format_cannot_hold_are_refused(
    row_format: RowFormat, value: float, tmp_path: Path
) -> None:
    keys, values = some_rows(4)
    values[2, 1] = value
    with pytest.raises(NonFiniteError, match=f"key {keys[2]} .* {row_format} cannot represent"):
        written(tmp_path, keys, values, row_format)
    assert list(tmp_path.iterdir()) == []


def test_float32_keeps_nan_without_an_error_to_report(tmp_path: Path) -> None:
    keys, values = some_rows(4)
    values[2] = [np.nan, np.inf, -np.inf]
    rows = written(tmp_path, keys, values)
    np.testing.assert_array_equal(rows.look_up(keys.view(np.int64)), values)
    assert (rows.entry.largest_error, rows.entry.mean_error) == (0.0, 0.0)


def test_format_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="rows must be one of 'float32', 'float16', 'int8'"):
        check_format("int4")


def test_only_admitted_rows_come_from_a_store(tmp_path: Path) -> None:
    store = LocalStore()
    store.define(TableSpec(name="ads", dim=DIM, admission=AdmitByCount(2)))
    store.pull("ads", np.array([1, 2]))
    store.pull("ads", np.array([2, 3]))
    with PendingExport(tmp_path) as pending:
        _, num_rows, _ = write_rows(
            pending, "rows-0", store.rows("ads"), table="ads", dim=DIM, row_format="float32"
        )
    assert num_rows == 1


def test_file_of_another_table_is_reported(tmp_path: Path) -> None:
    keys, values = some_rows(4)
    rows = written(tmp_path, keys, values)
    entry = rows.entry
    other = ExportedTable(**{**{f: getattr(entry, f) for f in entry.__slots__}, "dim": DIM + 1})
    with pytest.raises(
        CorruptFileError, match=r"has 4 rows of .*\[3\].*, expected 4 rows of .*\[4\]"
    ):
        RowFile(tmp_path / "kept.arrow", other)


def test_ids_of_another_type_are_refused(tmp_path: Path) -> None:
    rows = written(tmp_path, *some_rows(4))
    with pytest.raises(FeedError, match="ids must be int64, got int32"):
        rows.look_up(np.zeros(3, np.int32))  # type: ignore[arg-type]


@pytest.mark.parametrize("row_format", ["float32", "int8"])
def test_flipped_bits_are_reported_or_read_but_never_end_the_process(
    row_format: RowFormat, tmp_path: Path
) -> None:
    keys, values = some_rows(30)
    entry = written(tmp_path, keys, values, row_format).entry
    raw = (tmp_path / "kept.arrow").read_bytes()
    changed = tmp_path / "changed.arrow"
    told = []
    for place in range(len(raw)):
        flipped = bytearray(raw)
        flipped[place] ^= 1 << 7
        changed.write_bytes(flipped)
        try:
            with np.errstate(all="ignore"):
                RowFile(changed, entry).look_up(keys.view(np.int64))
        except CorruptFileError as error:
            told.append(str(error))
    assert len(told) > 100
    assert all("changed.arrow" in message for message in told)
