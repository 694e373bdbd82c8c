"""Saves and loads that fail leave the previous state intact."""

from __future__ import annotations

import errno
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.saved_training import assert_same, contents
from tests.support.server_process import ServerProcess
from tests.support.servers import NativeServers

from sparsefleet import optim
from sparsefleet.checkpoint.folder import LocalFolder, open_folder
from sparsefleet.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CorruptFileError,
    RpcError,
    UnknownTableError,
)
from sparsefleet.server import table_load, table_save
from sparsefleet.store import DenseSpec, RemoteStore, Store, TableSpec
from sparsefleet.store.store_save import StoreSave

KEYS = np.arange(3000)
SPECS = (
    TableSpec(name="ads", dim=4, optimizer=optim.Adam(lr=0.1), track_count=True),
    DenseSpec(name="net", size=50, optimizer=optim.Adagrad(lr=0.1), min_block_size=1),
)


def train(store: Store, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(len(KEYS), 4)).astype(np.float32)
    store.push_many({"ads": (KEYS, gradients)}, {"net": rng.normal(size=50).astype(np.float32)})


def define(store: Store, *specs: Any) -> None:
    for spec in specs or SPECS:
        store.define(spec)


@pytest.fixture
def store() -> Iterator[RemoteStore]:
    with NativeServers(2) as servers, servers.connect() as connected:
        define(connected)
        train(connected, 0)
        yield connected


@pytest.mark.parametrize(
    "moment",
    [pytest.param("before anything is written", marks=pytest.mark.job), "while it is written"],
)
def test_killed_server_leaves_the_previous_checkpoint_valid(moment: str, tmp_path: Path) -> None:
    servers = [ServerProcess("--index", str(i), "--num-servers", "2") for i in range(2)]
    try:
        endpoints = [server.wait_ready() for server in servers]
        with RemoteStore(endpoints) as store:
            define(store)
            train(store, 0)
            store.save(tmp_path / "model")
            before = contents(tmp_path / "model")
            train(store, 1)
            save = StoreSave(store, tmp_path / "model", timeout_s=30.0)
            save.open()
            if moment == "while it is written":
                save.write()
            servers[1].send(signal.SIGKILL)
            try:
                if moment != "while it is written":
                    save.write()
                save.commit({}, step=1)
            except (RpcError, CheckpointError):
                assert_same(contents(tmp_path / "model"), before)
            else:  # the save finished before the signal, so it is complete
                assert moment == "while it is written"
                assert contents(tmp_path / "model")
    finally:
        for server in servers:
            server.kill()


def test_full_disk_fails_the_save_and_harms_nothing(
    store: RemoteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(tmp_path)
    before = contents(tmp_path)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    train(store, 1)
    create = LocalFolder.create

    def full(folder: LocalFolder, path: str) -> Any:
        file = create(folder, path)

        def write(data: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        if path.startswith("tables/"):
            file._write = write  # type: ignore[method-assign]
        return file

    monkeypatch.setattr(LocalFolder, "create", full)
    with pytest.raises(CheckpointError, match=r"cannot write .*parquet: No space left on device"):
        store.save(tmp_path)
    assert_same(contents(tmp_path), before)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == files
    monkeypatch.undo()
    store.save(tmp_path)
    assert len(contents(tmp_path)["ads:keys"]) == len(KEYS)


def test_a_server_that_sees_another_disk_is_named(
    store: RemoteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = table_save.TableSave.write

    def elsewhere(save: Any, place: table_save.Destination) -> None:
        if save._shard[0] == 1:
            place = place._replace(folder=open_folder(str(tmp_path / "its own disk")))
        write(save, place)

    monkeypatch.setattr(table_save.TableSave, "write", elsewhere)
    with pytest.raises(CheckpointError, match="server 1 does not see the save .* share"):
        store.save(tmp_path / "model")
    assert not (tmp_path / "model" / "manifest.json").exists()


def rows_of(store: Store) -> dict[str, Any]:
    """Return the contents of all tables, read through a save."""
    with tempfile.TemporaryDirectory() as directory:
        store.save(directory)
        return contents(directory)


@pytest.mark.parametrize("what", ["rows", "dense", "one byte"])
def test_damaged_file_leaves_all_tables_as_they_were(
    what: str, store: RemoteStore, tmp_path: Path
) -> None:
    store.save(tmp_path)
    train(store, 1)
    before = rows_of(store)
    victim = next(tmp_path.glob("dense-*" if what == "dense" else "tables/*/00001-of-*"))
    data = bytearray(victim.read_bytes())
    if what == "one byte":
        data[len(data) // 2] ^= 1
    else:
        del data[-10:]
    victim.write_bytes(data)
    with pytest.raises(CorruptFileError, match=victim.name):
        store.load(tmp_path)
    assert_same(rows_of(store), before)


def test_files_removed_while_they_are_loaded_are_reported_with_what_it_means(
    store: RemoteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(tmp_path)
    apply = table_load.TableLoad.apply

    def remove_first(load: table_load.TableLoad) -> None:
        for file in tmp_path.glob("tables/*/*"):
            file.unlink(missing_ok=True)
        apply(load)

    monkeypatch.setattr(table_load.TableLoad, "apply", remove_first)
    with pytest.raises(CheckpointError, match="failed halfway: .* partly loaded; load a complete"):
        store.load(tmp_path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TableSpec(name="ads", dim=5, optimizer=optim.Adam()), "width: expected 5, found 4"),
        (TableSpec(name="ads", dim=4), "optimizer: expected 'adagrad', found 'adam'"),
        (TableSpec(name="ads/2", dim=4), r"expected table 'ads/2', found 'ads'"),
        (DenseSpec(name="net", size=51), "expected 51 elements, found 50"),
        (
            DenseSpec(name="net", size=50, optimizer=optim.Adam()),
            "expected 'adam', found 'adagrad'",
        ),
        (DenseSpec(name="mlp", size=50), "expected tensor 'mlp'"),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    spec: Any, message: str, store: RemoteStore, tmp_path: Path
) -> None:
    store.save(tmp_path)
    with NativeServers(1) as servers, servers.connect() as other:
        define(other, spec)
        with pytest.raises(CheckpointMismatchError, match=message):
            other.load(tmp_path)


def test_a_save_without_a_path_or_tables_says_so(store: RemoteStore, tmp_path: Path) -> None:
    with pytest.raises(UnknownTableError, match="no table 'sites' to save"):
        store.save(tmp_path, tables=["sites"])
    with pytest.raises(UnknownTableError, match="no table 'sites' to load"):
        store.load(tmp_path, tables=["sites"])
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="file"):
        store.save(tmp_path / "file" / "model")
