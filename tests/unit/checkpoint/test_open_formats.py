"""Checkpoints read by other programs, without sparsefleet."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file
from tests.support.checkpoints import ADS, as_table, save, synthetic_rows, two_tables

from sparsefleet.checkpoint import Checkpoint, export_table
from sparsefleet.errors import CheckpointIoError, CheckpointMismatchError, ConfigError


def test_pandas_and_duckdb_alone_read_a_checkpoint(tmp_path: Path) -> None:
    rows = two_tables()
    save(str(tmp_path), rows, num_shards=3, step=4)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    table = manifest["tables"][0]
    assert (table["name"], table["dim"], table["rows"]) == ("ads", 4, 200)
    for entry in table["files"]:
        data = (tmp_path / entry["path"]).read_bytes()
        assert len(data) == entry["bytes"]
        assert f"crc32:{zlib.crc32(data):08x}" == entry["checksum"]

    wanted = rows[0][1]
    frame = pd.concat(pd.read_parquet(tmp_path / entry["path"]) for entry in table["files"])
    frame = frame.sort_values("key")
    files = f"read_parquet('{tmp_path}/tables/ads-*/*.parquet')"
    query = f"select key, values, state, counters from {files} order by key"
    found = duckdb.sql(query).fetchnumpy()
    for source in (frame, found):
        assert np.array_equal(source["key"], wanted.keys)
        for name in ("values", "state", "counters"):
            column = np.stack(list(source[name]))
            assert column.dtype == getattr(wanted, name).dtype
            assert np.array_equal(column, getattr(wanted, name))
    query = f"select key from {files} order by list_inner_product(values, values) desc limit 1"
    longest = wanted.keys[np.linalg.norm(wanted.values, axis=1).argmax()]
    assert duckdb.sql(query).fetchall() == [(longest,)]

    (dense,) = tmp_path.glob("dense-*.safetensors")
    assert load_file(dense)["mlp.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    (workers,) = tmp_path.glob("workers-*.json")
    assert json.loads(workers.read_text()) == [{"rank": 0, "position": 5}]


def test_an_empty_table_has_columns_too(tmp_path: Path) -> None:
    save(str(tmp_path), [(ADS, synthetic_rows(ADS, []))], num_shards=2)
    query = f"select count(*) from read_parquet('{tmp_path}/tables/*/*.parquet') where key > 5"
    assert duckdb.sql(query).fetchall() == [(0,)]


@pytest.fixture
def delta(tmp_path: Path) -> Checkpoint:
    save(str(tmp_path / "a"), two_tables(), num_shards=2)
    gone = {"ads": [150]}
    save(str(tmp_path / "b"), two_tables(1, 60), base=str(tmp_path / "a"), removed=gone)
    return Checkpoint.open(str(tmp_path / "b"))


def test_a_table_is_exported_to_parquet(delta: Checkpoint, tmp_path: Path) -> None:
    target = str(tmp_path / "ads.parquet")
    assert export_table(delta, "ads", target) == 199
    frame = pd.read_parquet(target)
    wanted = as_table(delta.rows("ads"))
    found = {
        key: tuple(np.asarray(part).tobytes() for part in (values, state, counters))
        for key, values, state, counters in frame.itertuples(index=False)
    }
    assert found == wanted


def test_a_table_is_exported_to_csv(delta: Checkpoint, tmp_path: Path) -> None:
    target = str(tmp_path / "ads.csv")
    export_table(delta, "ads", target)
    frame = pd.read_csv(target, dtype={"key": "uint64"})
    assert list(frame.columns) == [
        "key",
        *(f"values_{place}" for place in range(4)),
        *(f"sum_{place}" for place in range(4)),
        "count",
        "step",
    ]
    wanted = as_table(delta.rows("ads"))
    values = frame.filter(like="values_").to_numpy(np.float32)
    assert {k: v.tobytes() for k, v in zip(frame["key"], values, strict=True)} == {
        key: row[0] for key, row in wanted.items()
    }


def test_only_some_columns_are_exported(delta: Checkpoint, tmp_path: Path) -> None:
    for name, columns in (("a.parquet", ["key", "values"]), ("b.parquet", ["key"])):
        export_table(delta, "ads", str(tmp_path / name), columns=columns[1:])
        assert list(pd.read_parquet(tmp_path / name).columns) == columns
    export_table(delta, "words/de", str(tmp_path / "c.csv"), columns=["counters"])
    assert list(pd.read_csv(tmp_path / "c.csv").columns) == ["key"]


def test_an_export_never_overwrites_and_leaves_nothing_when_it_fails(
    delta: Checkpoint, tmp_path: Path
) -> None:
    (tmp_path / "x.csv").write_text("mine")
    with pytest.raises(CheckpointIoError, match="x.csv: File exists"):
        export_table(delta, "ads", str(tmp_path / "x.csv"))
    assert (tmp_path / "x.csv").read_text() == "mine"
    with pytest.raises(ConfigError, match="must end with .parquet or .csv"):
        export_table(delta, "ads", str(tmp_path / "x.txt"))
    with pytest.raises(CheckpointMismatchError, match="expected table 'users'"):
        export_table(delta, "users", str(tmp_path / "y.csv"))
    assert not (tmp_path / "y.csv").exists()
