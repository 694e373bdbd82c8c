from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from sparsefleet.data import split_files
from sparsefleet.data.file_list import list_files
from sparsefleet.errors import ConfigError, InputFileError, InputMissingError


def test_patterns_are_expanded_in_order_and_lists_keep_theirs(tmp_path: Path) -> None:
    for name in ("part-2", "part-10", "part-1", "other"):
        (tmp_path / name).touch()
    (tmp_path / "part-dir").mkdir()
    names = [Path(path).name for path in list_files([tmp_path / "other", tmp_path / "part-*"])]
    assert names == ["other", "part-1", "part-10", "part-2"]


def test_a_file_with_a_star_in_its_name_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a*b").touch()
    (tmp_path / "axb").touch()
    assert list_files(tmp_path / "a*b") == [str(tmp_path / "a*b")]


def test_paths_with_a_protocol_keep_it() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/listed/part-0", b"")
    assert list_files("memory://listed/part-*") == ["memory:///listed/part-0"]
    assert list_files("memory://listed/part-0") == ["memory://listed/part-0"]


def test_what_is_not_there_is_reported_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match="nowhere: no such file"):
        list_files(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="no file matches the pattern"):
        list_files([tmp_path / "*.gz"])
    with pytest.raises(InputFileError, match="is a directory"):
        list_files(tmp_path)
    with pytest.raises(InputFileError, match="odd://x: cannot look up"):
        list_files("odd://x")


def test_lists_of_nothing_or_of_the_same_file_twice_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(ConfigError, match="the list of files is empty"):
        list_files([])
    with pytest.raises(ConfigError, match="twice"):
        list_files([tmp_path / "a", tmp_path / "a"])


def test_every_file_is_in_one_workers_part() -> None:
    files = [f"part-{index}" for index in range(11)]
    for workers in range(1, 15):
        parts = [split_files(files, index, workers) for index in range(workers)]
        assert [path for part in parts for path in part] == files
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
    with pytest.raises(ConfigError, match="in 0..1 for 2 workers, got 2"):
        split_files(files, 2, 2)
