"""Paths that stay below a root, and the many ways out of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparsefleet.checkpoint.folder import Confinement, open_folder
from sparsefleet.errors import ConfigError


@pytest.mark.parametrize(
    ("root", "path", "inside"),
    [
        ("s3://bucket/run", "s3://bucket/run", True),
        ("s3://bucket/run/", "s3://bucket/run/step-1/", True),
        ("s3://bucket", "s3://bucket/anything", True),
        ("memory://", "memory://anything", True),
        ("s3://bucket/run", "s3://bucket/runner", False),
        ("s3://bucket/run", "s3://bucket/run/../other", False),
        ("s3://bucket/run", "s3://bucket/run/%2e%2e/other", False),
        ("s3://bucket/run", "s3://bucket//run/step-1", False),
        ("s3://bucket/run", "s3://bucket/run\\..\\other", False),
        ("s3://bucket/run", "s3://other/run", False),
        ("s3://bucket/run", "S3://bucket/run", False),
        ("s3://bucket/run", "gs://bucket/run", False),
        ("s3://bucket/run", "s3://bucket/run/x::file:///etc", False),
        ("s3://bucket/run", "simplecache::s3://bucket/run", False),
        ("s3://bucket/run", "/bucket/run", False),
        ("s3://bucket/run", "file:///bucket/run", False),
    ],
)
def test_urls_are_compared_part_by_part(root: str, path: str, inside: bool) -> None:
    confinement = Confinement(root)
    if inside:
        confinement.check(path)
    else:
        with pytest.raises(ConfigError, match="is not below"):
            confinement.check(path)


def test_links_are_resolved_in_the_root_and_in_the_path(tmp_path: Path) -> None:
    (tmp_path / "real" / "run").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    confinement = Confinement(str(tmp_path / "link"), "because")
    confinement.check(str(tmp_path / "link" / "run"))
    confinement.check(str(tmp_path / "real" / "run" / "new"))
    confinement.check(os.path.relpath(tmp_path / "real" / "run"))
    (tmp_path / "real" / "up").symlink_to("..")
    with pytest.raises(ConfigError, match="/real; because$"):
        confinement.check(str(tmp_path / "link" / "up" / "x"))


def test_files_of_a_confined_folder_are_checked_when_they_are_used(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "model").mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_text("secret")
    (root / "model" / "file").symlink_to(outside / "file")
    (root / "model" / "tables").symlink_to(outside)
    folder = open_folder(str(root / "model"), within=Confinement(str(root)))
    for use in (folder.read, folder.open, folder.size, folder.checksum, folder.modified):
        for path in ("file", "tables/file"):
            with pytest.raises(ConfigError, match="is not below"):
                use(path)
    for act in (
        lambda: folder.create("tables/new"),
        lambda: folder.replace("tables/new", b"x", "pending"),
        lambda: folder.remove(["tables/file"]),
        lambda: folder.sub("../../outside"),
        lambda: folder.sub(f"file://{outside}"),
        lambda: folder.sub(str(outside)),
        lambda: folder.sub("tables"),
    ):
        with pytest.raises(ConfigError, match="is not below"):
            act()
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert folder.sub("../other").sub("..").root == str(root)


def test_a_root_must_be_something() -> None:
    with pytest.raises(ConfigError, match="must be a directory or URL"):
        Confinement("")
