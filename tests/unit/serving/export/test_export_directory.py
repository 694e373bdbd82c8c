"""A directory always holds a complete export, or none."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from sparsefleet.errors import CheckpointError, IoError
from sparsefleet.serving.export.export_directory import (
    PendingExport,
    open_export,
    read_manifest,
    verify_export,
)
from sparsefleet.serving.export.manifest import ExportManifest, GoldenEntry, OnnxEntry, Schema


def commit(directory: Path, content: str) -> ExportManifest:
    with PendingExport(directory) as pending:
        names = []
        for stem in ("graph", "parameters", "golden"):
            path = pending.path(stem, "bin")
            path.write_text(content, encoding="utf-8")
            names.append(pending.seal(path))
        manifest = ExportManifest(
            created="today",
            made_by={},
            schema=Schema(inputs=(), targets=(), lookups=()),
            tables=(),
            graph=names[0],
            parameters=names[1],
            golden=GoldenEntry(file=names[2], examples=0, largest_error=0.0),
            onnx=OnnxEntry(steps=(), missing="no"),
            files=pending.files,
        )
        pending.commit(manifest)
    return manifest


def test_commit_replaces_the_export_before_and_leaves_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    commit(tmp_path, "first")
    second = commit(tmp_path, "second")
    assert verify_export(tmp_path) == second
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"manifest.json", "notes.txt", *(entry.name for entry in second.files)}


def test_what_breaks_off_leaves_the_export_before_and_nothing_else(tmp_path: Path) -> None:
    first = commit(tmp_path, "first")
    before = sorted(path.name for path in tmp_path.iterdir())
    with suppress(KeyError), PendingExport(tmp_path) as pending:
        pending.seal(_filled(pending.path("graph", "bin")))
        _filled(pending.scratch("rows"))
        raise KeyError("cut off")
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert verify_export(tmp_path) == first


def test_files_of_a_killed_export_go_with_the_next(tmp_path: Path) -> None:
    killed = PendingExport(tmp_path)
    _filled(killed.path("rows-0", "arrow"))
    _filled(killed.scratch("manifest"))
    last = commit(tmp_path, "whole")
    assert len(list(tmp_path.iterdir())) == 1 + len(last.files)


@pytest.mark.parametrize(
    ("owner", "failing", "code"),
    [
        (os, "fsync", errno.ENOSPC),
        (os, "replace", errno.EACCES),
        (Path, "write_text", errno.ENOSPC),
    ],
)
def test_disk_that_fails_is_reported_and_harms_nothing(
    owner: object, failing: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = commit(tmp_path, "first")

    def fail(*arguments: object, **more: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(owner, failing, fail)
    wanted = f"previous contents are unchanged.*{os.strerror(code)}"
    with pytest.raises(IoError, match=wanted):
        commit(tmp_path, "second")
    monkeypatch.undo()
    assert verify_export(tmp_path) == first
    assert len(list(tmp_path.iterdir())) == 1 + len(first.files)


def test_a_second_export_at_the_same_time_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    with PendingExport(tmp_path) as running:
        path = running.path("graph", "bin")
        path.write_text("half", encoding="utf-8")
        with pytest.raises(IoError, match="another export is being written"):
            commit(tmp_path, "second")
        assert path.exists()
    assert not list(tmp_path.iterdir())
    commit(tmp_path, "third")


def test_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(IoError, match="the export cannot be written to"):
        commit(tmp_path / "file" / "export", "x")


def test_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    other = json.dumps({"kind": "checkpoint"})
    (tmp_path / "manifest.json").write_text(other, encoding="utf-8")
    with pytest.raises(
        CheckpointError, match="not the manifest of an exported model.*different dir"
    ):
        commit(tmp_path, "x")
    assert (tmp_path / "manifest.json").read_text(encoding="utf-8") == other


def test_remains_of_an_export_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"kind": "spar', encoding="utf-8")
    assert commit(tmp_path, "x") == read_manifest(tmp_path)


def test_export_replaced_while_it_is_opened_is_reopened(tmp_path: Path) -> None:
    commit(tmp_path, "first")
    opened = []

    def build(directory: Path, manifest: ExportManifest) -> str:
        opened.append(manifest)
        if len(opened) == 1:
            commit(tmp_path, "second")
        return (directory / manifest.graph).read_text(encoding="utf-8")

    assert open_export(tmp_path, True, build) == "second"
    assert len(opened) == 2


def _filled(path: Path) -> Path:
    path.write_text("part", encoding="utf-8")
    return path
