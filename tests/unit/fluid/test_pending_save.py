"""Saves that fail, crash or run at the same time."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sparsefleet.errors import CheckpointIoError, ConfigError, PeerLostError
from sparsefleet.fluid.io import pending_save
from sparsefleet.fluid.io.pending_save import PendingSave
from sparsefleet.fluid.io.variable_file import ArrayToWrite, RowsToWrite, RowWidths
from sparsefleet.store import Rows

OLD = np.zeros(3, np.float32)
NEW = np.ones(3, np.float32)


def save(folder: Path, value: np.ndarray, *names: str) -> None:
    with PendingSave(folder) as pending:
        for name in names:
            pending.write_file(name, [ArrayToWrite(name, value)])
        pending.commit()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_nothing_changes_before_the_commit(tmp_path: Path) -> None:
    save(tmp_path, OLD, "a", "b")
    before = contents(tmp_path)
    with PendingSave(tmp_path) as pending:
        pending.write_file("a", [ArrayToWrite("a", NEW)])
        pending.write_text("notes", "new")
        assert {name: data for name, data in contents(tmp_path).items() if name in before} == before
    assert contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_full_disk_leaves_what_was_saved_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, OLD, "a", "b")
    before = contents(tmp_path)
    written = []

    def full(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pending_save.os, "fsync", full)
    with pytest.raises(CheckpointIoError, match=r"cannot write .*/b: No space left on device; "):
        save(tmp_path, NEW, "a", "b")
    assert contents(tmp_path) == before


def test_leftovers_of_a_crash_go_with_the_next_save_but_running_saves_stay(tmp_path: Path) -> None:
    script = f"""
import os
import numpy as np
from pathlib import Path
from sparsefleet.fluid.io.pending_save import PendingSave
from sparsefleet.fluid.io.variable_file import ArrayToWrite
pending = PendingSave(Path({str(tmp_path)!r}))
pending.write_file("a", [ArrayToWrite("a", np.ones(3, np.float32))])
os._exit(3)
"""
    ended = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert ended.returncode == 3
    (crashed,) = tmp_path.glob(".saving-*")
    with PendingSave(tmp_path) as running:
        assert not crashed.exists()
        running.write_file("a", [ArrayToWrite("a", NEW)])
        save(tmp_path, OLD, "b")
        running.commit()
    assert sorted(contents(tmp_path)) == ["a", "b"]


def test_a_folder_of_something_else_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "holiday.jpg").write_bytes(b"mine")
    with pytest.raises(ConfigError, match=r"is a folder with other contents \(holiday.jpg\)"):
        save(tmp_path, NEW, "a")
    assert (tmp_path / "a" / "holiday.jpg").read_bytes() == b"mine"


def test_names_with_slashes_make_folders_and_none_leads_out(tmp_path: Path) -> None:
    save(tmp_path / "new" / "folder", NEW, "tower/layer/w")
    assert (tmp_path / "new" / "folder" / "tower" / "layer" / "w").is_file()
    with pytest.raises(ValueError, match="points outside"):
        save(tmp_path / "new", NEW, "../w")


def test_a_lost_server_is_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    def rows() -> Iterator[Rows]:
        raise PeerLostError("server 1 is lost")
        yield

    save(tmp_path, OLD, "a")
    before = contents(tmp_path)
    with PendingSave(tmp_path) as pending, pytest.raises(PeerLostError, match="server 1 is lost"):
        pending.write_file("a", [RowsToWrite("a", RowWidths(2, 0, 0), "sgd", rows())])
    assert contents(tmp_path) == before
