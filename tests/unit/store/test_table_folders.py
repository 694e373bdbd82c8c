"""Tables saved to separate folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.servers import NativeServers

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.errors import CheckpointMissingError, DeadlineError, UnknownTableError
from sparsefleet.optim import SGD
from sparsefleet.server import table_save
from sparsefleet.store import Constant, DenseSpec, RemoteStore, TableSpec
from sparsefleet.store.table_folders import TableFolders, load_table_folders

KEYS = np.arange(100)


@pytest.fixture
def store() -> Iterator[RemoteStore]:
    with NativeServers(2) as servers, servers.connect() as made:
        for name in ("ads", "users"):
            made.define(
                TableSpec(name=name, dim=2, optimizer=SGD(lr=1.0), initializer=Constant(0.0))
            )
            made.pull(name, KEYS)
        made.define(DenseSpec(name="mlp", size=7, optimizer=SGD(lr=1.0)))
        made.write_dense("mlp", np.zeros(7, np.float32))
        yield made


def push(store: RemoteStore) -> None:
    """Take one step: all values go from n to n - 1."""
    rows = np.ones((len(KEYS), 2), np.float32)
    store.push_many({"ads": (KEYS, rows), "users": (KEYS, rows)}, {"mlp": np.ones(7, np.float32)})


def values(path: Path, table: str) -> set[float]:
    rows = list(Checkpoint.open(str(path)).rows(table))
    assert sorted(np.concatenate([chunk.keys for chunk in rows])) == list(KEYS)
    return {float(value) for chunk in rows for value in chunk.values.reshape(-1)}


def folders(path: Path) -> dict[str, Path]:
    return {name: path / name for name in ("ads", "users")}


def save(store: RemoteStore, path: Path) -> None:
    tables = TableFolders(store, folders(path))
    tables.open()
    tables.write()
    tables.finish()
    tables.commit()


def test_all_tables_are_of_the_moment_of_opening(store: RemoteStore, tmp_path: Path) -> None:
    push(store)
    tables = TableFolders(store, folders(tmp_path), dense=["mlp"])
    tables.open()
    push(store)
    assert set(tables.dense_table("mlp").values) == {-1.0}
    tables.write()
    tables.finish()
    with pytest.raises(CheckpointMissingError):
        Checkpoint.open(str(tmp_path / "ads"))
    tables.commit()
    assert values(tmp_path / "ads", "ads") == values(tmp_path / "users", "users") == {-1.0}


def test_an_aborted_save_leaves_the_one_before_and_nothing_else(
    store: RemoteStore, tmp_path: Path
) -> None:
    save(store, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    push(store)
    tables = TableFolders(store, folders(tmp_path))
    tables.open()
    tables.write()
    tables.finish()
    tables.abort()
    assert sorted(tmp_path.rglob("*")) == before
    assert values(tmp_path / "ads", "ads") == {0.0}


def test_rows_come_back_and_no_others(store: RemoteStore, tmp_path: Path) -> None:
    push(store)
    save(store, tmp_path)
    push(store)
    store.pull("ads", KEYS + 1000)
    load_table_folders(
        store, {n: Checkpoint.open(str(path)) for n, path in folders(tmp_path).items()}
    )
    for name in ("ads", "users"):
        assert int(store.info(name).size) == len(KEYS)
        assert set(store.pull(name, KEYS, train=False).reshape(-1)) == {-1.0}


def test_a_server_that_takes_too_long_is_named(
    store: RemoteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = table_save.TableSave.write
    orders = []
    monkeypatch.setattr(
        table_save.TableSave,
        "write",
        lambda save, place: orders.append(place) if save._shard[0] == 1 else write(save, place),
    )
    tables = TableFolders(store, folders(tmp_path), timeout_s=0.2)
    tables.open()
    tables.write()
    with pytest.raises(DeadlineError, match="server 1 did not finish within 0.2 s"):
        tables.finish()
    assert len(orders) == 2
    assert not tmp_path.exists() or not list(tmp_path.rglob("*.parquet"))


def test_a_table_that_was_not_defined_is_named(store: RemoteStore, tmp_path: Path) -> None:
    with pytest.raises(UnknownTableError, match="no sparse table 'shops' to save"):
        TableFolders(store, {"shops": tmp_path})
