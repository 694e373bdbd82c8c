"""Saving and loading as a server does, command by command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefleet.checkpoint import PendingCheckpoint
from sparsefleet.errors import ConfigError, DeadlineError, NotFoundError, ProtocolError
from sparsefleet.server import table_save
from sparsefleet.server.table_files import TableFiles
from sparsefleet.store import LocalStore, TableSpec

WAIT_S = 20.0
TABLES = {"tables": [["ads", 2, 2, 0]], "dense": []}
BEGIN = {**TABLES, "only_dirty": False, "clear_dirty": False}


@pytest.fixture
def store() -> LocalStore:
    made = LocalStore()
    made.define(TableSpec(name="ads", dim=2))
    made.pull("ads", np.arange(10))
    return made


def ask(files: TableFiles, name: str, token: str = "t", **asked: Any) -> Any:
    return json.loads(files.calls()[name](json.dumps({"token": token, **asked}).encode()))


def test_a_save_that_nobody_asks_after_drops_its_cuts(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_save, "_LEASE_S", 0.05)
    monkeypatch.setattr(table_save, "_LOOK_UP_S", 0.01)
    files = TableFiles(store._native)
    ask(files, "save_begin", "first", **BEGIN)
    save = files._saves["first"]
    save._job._thread.join(WAIT_S)
    assert save.is_over
    with pytest.raises(DeadlineError, match="has not asked after it for"):
        ask(files, "save_wait", "first", wait_s=0.01)
    ask(files, "save_begin", "second", **BEGIN)
    assert list(files._saves) == ["second"]
    ask(files, "save_end", "second")


def test_a_save_is_of_the_moment_it_was_begun(store: LocalStore, tmp_path: Path) -> None:
    files = TableFiles(store._native)
    ask(files, "save_begin", **BEGIN)
    store.pull("ads", np.arange(100))
    with PendingCheckpoint.begin(str(tmp_path)) as pending:
        place = {"path": pending.path, "checkpoint": pending.token, "storage_options": {}}
        ask(files, "save_write", **place)
        while (written := ask(files, "save_wait", wait_s=1.0)) is None:
            pass
        assert [entry["rows"] for entry in written["ads"]["files"]] == [10]
    ask(files, "save_end")
    with pytest.raises(NotFoundError, match="server 0 knows of no save t"):
        ask(files, "save_wait", wait_s=0.1)


@pytest.mark.parametrize(
    "path", ["{root}-more", "{root}/../x", "{root}/out/a", "s3://bucket/x", "/"]
)
def test_paths_outside_the_save_root_are_refused(
    path: str, store: LocalStore, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "out").symlink_to(tmp_path)
    files = TableFiles(store._native, save_root=str(root))
    ask(files, "save_begin", **BEGIN)
    asked = {"path": path.format(root=root), "storage_options": {}}
    with pytest.raises(ConfigError, match="below .*root only"):
        ask(files, "save_write", checkpoint="x", **asked)
    with pytest.raises(ConfigError, match="below .*root only"):
        ask(files, "load_begin", tables={}, dense=[], **asked)
    ask(files, "save_end")


@pytest.mark.parametrize("body", [b"", b"no", b"[1]", b"\xff"])
def test_bodies_that_are_no_objects_are_refused(body: bytes, store: LocalStore) -> None:
    with pytest.raises(ProtocolError):
        TableFiles(store._native).calls()["save_begin"](body)


def test_rows_count_as_saved_when_the_checkpoint_is_in_force_and_not_before(tmp_path: Path) -> None:
    store = LocalStore()
    store.define(TableSpec(name="ads", dim=2, track_dirty=True))
    store.define(TableSpec(name="not saved", dim=2))  # nor does it track what changes
    store.pull("ads", np.arange(10))
    files = TableFiles(store._native)

    def save(only_dirty: bool, **end: bool) -> tuple[int, int]:
        """Rows and removed keys of a save that ends so."""
        ask(files, "save_begin", **TABLES, only_dirty=only_dirty, clear_dirty=True)
        with PendingCheckpoint.begin(str(tmp_path)) as pending:
            place = {"path": pending.path, "checkpoint": pending.token, "storage_options": {}}
            ask(files, "save_write", **place)
            while (written := ask(files, "save_wait", wait_s=1.0)) is None:
                pass
        store.push("ads", np.arange(9, 10), np.ones((1, 2), np.float32))  # while it is committed
        ask(files, "save_end", **end)
        entries = written["ads"]
        return tuple(sum(e["rows"] for e in entries[kind]) for kind in ("files", "removed"))

    assert save(False) == (10, 0)
    assert save(True) == (10, 0)
    assert save(False, in_force=True) == (10, 0)
    store.erase("ads", np.arange(2))
    store.push("ads", np.arange(2, 4), np.ones((2, 2), np.float32))
    assert save(True) == (3, 2)  # 2 and 3, and what was pushed to after the save before was written
    assert save(True, in_force=True) == (3, 2)
    assert save(True, in_force=True) == (1, 0)
