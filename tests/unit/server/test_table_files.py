"""Saving and loading on a server, command by command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.checkpoint.manifest import FileEntry
from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint
from sparsefleet.errors import (
    CheckpointMissingError,
    ConfigError,
    DeadlineError,
    NotFoundError,
    ProtocolError,
    UnknownTableError,
)
from sparsefleet.server import table_save
from sparsefleet.server.table_files import TableFiles
from sparsefleet.store import LocalStore, TableSpec
from sparsefleet.store.table_spec import table_entry

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
    with pytest.raises(DeadlineError, match="client has not polled it for"):
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
    with pytest.raises(NotFoundError, match="server 0 has no save t"):
        ask(files, "save_wait", wait_s=0.1)


TOKEN = "00112233aabbccdd"


@pytest.mark.parametrize(
    "path",
    [
        "{root}-more",
        "{root}/../x",
        "{root}/out/a",
        "file://{root}/../x",
        "local:///",
        "s3://bucket/x",
        "simplecache::file://{root}/x",
        "/",
        "~",
        "{root}/a\0b",
    ],
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
    for command, more in (
        ("save_write", {"checkpoint": TOKEN}),
        ("load_begin", {"tables": {}, "dense": []}),
    ):
        with pytest.raises(
            ConfigError,
            match="is not below .*root; server 0 only saves and loads under its --save-root",
        ):
            ask(files, command, **asked, **more)
    ask(files, "save_end")


def test_home_directories_are_outside_of_the_save_root_whatever_the_server_works_in(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root of "." used to allow "~": it was compared as a file name and opened as a home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    files = TableFiles(store._native, save_root=".")
    asked = {"path": "~/x", "storage_options": {}, "tables": {}, "dense": []}
    with pytest.raises(ConfigError, match="--save-root"):
        ask(files, "load_begin", **asked)


def test_local_urls_below_the_save_root_are_allowed(store: LocalStore, tmp_path: Path) -> None:
    files = TableFiles(store._native, save_root=f"file://{tmp_path}")
    with PendingCheckpoint.begin(str(tmp_path / "model")) as pending:
        ask(files, "save_begin", **BEGIN)
        path = f"file://{tmp_path}/model"
        ask(files, "save_write", path=path, checkpoint=pending.token, storage_options={})
        while (written := ask(files, "save_wait", wait_s=1.0)) is None:
            pass
        assert [entry["rows"] for entry in written["ads"]["files"]] == [10]
        ask(files, "save_end")


@pytest.mark.parametrize("token", ["../../x", "x", "", 5, None, "00112233aabbccdd/../.."])
def test_token_that_would_lead_elsewhere_is_refused(
    token: object, store: LocalStore, tmp_path: Path
) -> None:
    files = TableFiles(store._native)
    ask(files, "save_begin", **BEGIN)
    with pytest.raises(ProtocolError, match="expected 16 hex digits"):
        ask(files, "save_write", path=str(tmp_path), checkpoint=token, storage_options={})
    with pytest.raises(ProtocolError, match="expected a string"):
        ask(files, "save_write", path=["x"], checkpoint=TOKEN, storage_options={})
    ask(files, "save_end")


@pytest.mark.parametrize("body", [b"", b"no", b"[1]", b"\xff"])
def test_bodies_that_are_not_objects_are_refused(body: bytes, store: LocalStore) -> None:
    with pytest.raises(ProtocolError):
        TableFiles(store._native).calls()["save_begin"](body)


def test_rows_count_as_saved_once_the_checkpoint_is_committed(tmp_path: Path) -> None:
    store = LocalStore()
    store.define(TableSpec(name="ads", dim=2, track_dirty=True))
    store.define(TableSpec(name="not saved", dim=2))  # nor does it track changes
    store.pull("ads", np.arange(10))
    files = TableFiles(store._native)

    def save(only_dirty: bool, **end: bool) -> tuple[int, int]:
        """Return rows and removed keys of a save that ends this way."""
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
    assert save(False, is_committed=True) == (10, 0)
    store.erase("ads", np.arange(2))
    store.push("ads", np.arange(2, 4), np.ones((2, 2), np.float32))
    assert save(True) == (3, 2)  # 2 and 3, and what was pushed after the previous save was written
    assert save(True, is_committed=True) == (3, 2)
    assert save(True, is_committed=True) == (1, 0)


def wait(files: TableFiles, command: str) -> Any:
    while (answer := ask(files, command, wait_s=1.0)) is None:
        pass
    return answer


def test_tables_of_one_save_go_to_checkpoints_of_their_own_and_back(tmp_path: Path) -> None:
    store = LocalStore()
    for name in ("ads", "users"):
        store.define(TableSpec(name=name, dim=2))
        store.pull(name, np.arange(5))
    files = TableFiles(store._native)
    tables = [["ads", 2, 2, 0], ["users", 2, 2, 0]]
    ask(files, "save_begin", tables=tables, dense=[], only_dirty=False, clear_dirty=False)
    parts = []
    for name in ("users", "ads"):
        pending = PendingCheckpoint.begin(str(tmp_path / name))
        place = {"path": pending.path, "checkpoint": pending.token, "storage_options": {}}
        ask(files, "save_write", **place, tables=[name])
        parts.append((pending, {**place, "tables": {name: []}, "dense": []}))
    written = wait(files, "save_wait")
    ask(files, "save_end")
    for pending, part in parts:
        (name,) = part["tables"]
        entries = [FileEntry.from_json(entry) for entry in written[name]["files"]]
        pending.commit(step=0, tables=[table_entry(store.specs[name]).with_files(entries)])
    store.pull("ads", np.arange(50))
    store.push("users", np.arange(5), np.ones((5, 2), np.float32))
    wanted = {name: Checkpoint.open(str(tmp_path / name)) for name in ("ads", "users")}
    before = {name: next(wanted[name].rows(name)) for name in wanted}
    asked = [{**part, "without_state": ["users"]} for _, part in parts]
    ask(files, "load_begin", parts=asked)
    wait(files, "load_wait")
    ask(files, "load_apply")
    assert wait(files, "load_wait") == {"rows": {"ads": 5, "users": 5}}
    ask(files, "load_end")
    for name, rows in before.items():
        np.testing.assert_array_equal(store.pull(name, rows.keys, train=False), rows.values)
        assert int(store.info(name).size) == 5


def test_a_server_says_which_saves_it_sees(store: LocalStore, tmp_path: Path) -> None:
    root = tmp_path / "root"
    files = TableFiles(store._native, save_root=str(root))

    def sees(path: Path, token: str) -> bool:
        return bool(ask(files, "sees_saves", saves=[[str(path), token]])["sees"])

    with PendingCheckpoint.begin(str(root / "model")) as pending:
        token = pending.token
        assert sees(root / "model", token)
        assert not sees(root / "model", "0" * 16)
        pending.commit(step=0)
    assert sees(root / "model", token)
    assert not sees(root / "model", "0" * 16)
    assert not sees(root / "nowhere", token)
    with PendingCheckpoint.begin(str(tmp_path / "outside")) as pending:
        assert not sees(tmp_path / "outside", pending.token), "it may not use it"


def test_another_checkpoint_at_the_same_path_is_not_loaded(
    store: LocalStore, tmp_path: Path
) -> None:
    with PendingCheckpoint.begin(str(tmp_path)) as pending:
        pending.commit(step=0)
    part = {"path": str(tmp_path), "storage_options": {}, "tables": {}, "dense": []}
    with pytest.raises(CheckpointMissingError, match="server 0 sees a different checkpoint in"):
        ask(TableFiles(store._native), "load_begin", parts=[{**part, "checkpoint": "0" * 16}])


def test_a_table_that_is_not_in_the_save_is_named(store: LocalStore, tmp_path: Path) -> None:
    files = TableFiles(store._native)
    ask(files, "save_begin", **BEGIN)
    with PendingCheckpoint.begin(str(tmp_path)) as pending:
        place = {"path": pending.path, "checkpoint": pending.token, "storage_options": {}}
        ask(files, "save_write", **place, tables=["users"])
        with pytest.raises(
            UnknownTableError, match="table 'users' is not in this save, or was already written"
        ):
            wait(files, "save_wait")
    ask(files, "save_end")
