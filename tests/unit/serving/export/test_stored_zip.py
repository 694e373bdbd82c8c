"""Zip archives without compression, as several tools write them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from tests.support.forged_zip import Entry, plain, zip64_extra, zip_of

from sparsefleet.serving.export.graph_file import StoredZip, ZipWriter


def test_zip_files_of_several_tools_are_read(tmp_path: Path) -> None:
    contents = {"a/x": b"first", "a/y": b"", "a/z": bytes(70_000)}
    by_python = io.BytesIO()
    with zipfile.ZipFile(by_python, "w") as archive:
        for name, raw in contents.items():
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(raw)
    described = plain(contents)
    for entry in described:
        raw = Entry("a", entry.data)
        entry.flags = 8
        crc = zip_of([raw])[14:18]
        entry.descriptor = b"PK\7\x08" + crc + 2 * len(entry.data).to_bytes(4, "little")
        entry.local = {"crc": 0, "size": 0, "packed": 0}
    wide = plain(contents)
    wide[2].central = {
        "size": 0xFFFFFFFF,
        "packed": 0xFFFFFFFF,
        "extra": zip64_extra(70_000, 70_000),
    }
    for raw_archive in (by_python.getvalue(), zip_of(described), zip_of(wide)):
        path = tmp_path / "archive.zip"
        path.write_bytes(raw_archive)
        with path.open("rb") as file:
            found = StoredZip(file)
            assert {name: found.read(name) for name in found.names} == contents


def test_written_archive_is_read_by_ourselves_and_by_python(tmp_path: Path) -> None:
    contents = {"a/x": b"first", "a/y": b"", "a/z": bytes(3 << 20)}
    path = tmp_path / "archive.zip"
    with path.open("wb") as file, ZipWriter(file) as target:
        for name, raw in contents.items():
            target.write(name, len(raw), iter((raw[:1], raw[1:])))
    with path.open("rb") as file:
        found = StoredZip(file)
        assert {name: found.read(name) for name in found.names} == contents
        assert [found.size(name) for name in contents] == [5, 0, 3 << 20]
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == list(contents)
