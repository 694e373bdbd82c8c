"""A save that crashes, fails or runs concurrently with another never destroys a checkpoint."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoints import ADS, contents, save, synthetic_rows, two_tables
from tests.unit.checkpoint.killed_saves import CALLS, NEW, OLD, save_one

from sparsefleet.checkpoint import Checkpoint, RowChunk, clean_up
from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint
from sparsefleet.checkpoint.row_chunk import RowLayout
from sparsefleet.checkpoint.row_file_writer import RowFileWriter
from sparsefleet.errors import CheckpointIoError, CorruptFileError

ROOT = Path(__file__).parents[3]


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def named_files(folder: Path) -> list[str]:
    """The files that belong to the checkpoint."""
    manifest = Checkpoint.open(str(folder)).manifest
    return sorted(["manifest.json", *(entry.path for entry in manifest.files())])


def test_kill_at_every_write_point_leaves_the_old_or_the_new_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.unit.checkpoint.killed_saves", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    places = sorted(tmp_path.iterdir())
    assert len(places) > 40, "the calls were not caught"
    wanted = {}
    for number in (OLD, NEW):
        save_one(tmp_path / f"wanted-{number}", number)
        wanted[number] = contents(Checkpoint.open(str(tmp_path / f"wanted-{number}")))
    steps = []
    for place in places:
        checkpoint = Checkpoint.open(str(place))
        checkpoint.verify()
        assert contents(checkpoint) == wanted[checkpoint.manifest.step], place
        steps.append(checkpoint.manifest.step)
        save_one(place, NEW)
        assert names(place) == named_files(place), "the next save cleans up"
    assert steps == sorted(steps), "a committed checkpoint stays"
    assert set(steps) == {OLD, NEW}


class FailingCalls:
    """Make the n-th call that changes the disk fail with a system error."""

    def __init__(self, patch: pytest.MonkeyPatch, number: int, code: int) -> None:
        self.left = number
        self.code = code
        for name in CALLS:
            if name not in ("rmdir", "unlink"):
                patch.setattr(os, name, self._failing(getattr(os, name), name))

    def _failing(self, real: Any, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not arguments[1] & os.O_CREAT:
                return real(*arguments, **options)
            self.left -= 1
            if self.left < 0:
                raise OSError(self.code, os.strerror(self.code))
            return real(*arguments, **options)

        return call


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO, errno.EROFS])
def test_a_disk_that_refuses_gives_a_typed_error_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    save_one(tmp_path, OLD)
    before = contents(Checkpoint.open(str(tmp_path)))
    files = names(tmp_path)
    number = 0
    while True:
        with monkeypatch.context() as patch:
            FailingCalls(patch, number, code)
            try:
                save_one(tmp_path, NEW)
                break
            except CheckpointIoError as error:
                message = str(error)
        number += 1
        assert os.strerror(code) in message
        assert str(tmp_path) in message
        found = Checkpoint.open(str(tmp_path))
        found.verify()
        if found.manifest.step == OLD:  # otherwise only the last sync failed, after the rename
            assert contents(found) == before
            assert names(tmp_path) == files, "nothing of the failed save is left"
    assert number > 20
    assert Checkpoint.open(str(tmp_path)).manifest.step == NEW


def test_the_file_size_limit_of_the_system_is_reported(tmp_path: Path) -> None:
    """A real limit, not a fake: the kernel refuses to let a file grow."""
    script = (
        "import resource, signal, sys\n"
        "from tests.support.checkpoints import save, two_tables\n"
        "from sparsefleet.errors import CheckpointIoError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    save(sys.argv[1], two_tables(2, 5000), step=2)\n"
        "except CheckpointIoError as error:\n"
        "    print(error)\n"
    )
    save(str(tmp_path), two_tables(1, 50), step=1)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "File too large" in done.stdout
    assert "tables/ads-" in done.stdout
    Checkpoint.open(str(tmp_path)).verify()
    assert names(tmp_path) == named_files(tmp_path)


def test_a_save_that_is_still_running_is_not_cleaned_up(tmp_path: Path) -> None:
    running = PendingCheckpoint.begin(str(tmp_path))
    files = running.write_rows(ADS, 0, 1, [synthetic_rows(ADS, range(9))])
    save_one(tmp_path, OLD)
    assert clean_up(str(tmp_path)) == []
    running.commit(step=7, tables=[ADS.with_files(files)])
    assert Checkpoint.open(str(tmp_path)).manifest.step == 7
    assert names(tmp_path) == named_files(tmp_path)


def test_a_save_running_in_another_process_is_not_cleaned_up(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from tests.support.checkpoints import ADS, synthetic_rows\n"
        "from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint\n"
        "pending = PendingCheckpoint.begin(sys.argv[1])\n"
        "files = pending.write_rows(ADS, 0, 1, [synthetic_rows(ADS, range(9))])\n"
        "print('written', flush=True)\n"
        "if sys.stdin.readline() == 'go on\\n':\n"
        "    pending.commit(step=7, tables=[ADS.with_files(files)])\n"
    )

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        return process

    with start() as first, start() as second:
        second.kill()
        second.wait(timeout=30)
        save_one(tmp_path, OLD)
        assert len(list(tmp_path.glob("pending-*.json"))) == 1, "the one that was killed is gone"
        first.communicate("go on\n", timeout=60)
        assert first.returncode == 0
    assert Checkpoint.open(str(tmp_path)).manifest.step == 7
    Checkpoint.open(str(tmp_path)).verify()
    assert names(tmp_path) == named_files(tmp_path)


def test_files_of_others_are_never_removed(tmp_path: Path) -> None:
    others = ["notes.txt", "dense.safetensors", "tables/mine.parquet", "pending-x.json"]
    (tmp_path / "tables").mkdir()
    for name in others:
        (tmp_path / name).write_text("mine")
    save_one(tmp_path, OLD)
    save_one(tmp_path, NEW)
    assert set(others) <= set(names(tmp_path))


def test_an_aborted_save_leaves_nothing(tmp_path: Path) -> None:
    pending = PendingCheckpoint.begin(str(tmp_path / "new"))
    with RowFileWriter(pending.path, pending.token, RowLayout.of(ADS)) as writer:
        writer.write(synthetic_rows(ADS, range(5)))
    pending.abort()
    pending.abort()
    assert not (tmp_path / "new").exists()


def test_a_writer_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def broken_cut() -> Iterator[RowChunk]:
        yield synthetic_rows(ADS, range(5))
        raise RuntimeError("the cut broke")

    def write() -> None:
        with RowFileWriter(str(tmp_path), "0" * 16, RowLayout.of(ADS)) as writer:
            for chunk in broken_cut():
                writer.write(chunk)

    with pytest.raises(RuntimeError, match="the cut broke"):
        write()
    assert names(tmp_path) == []


def test_nothing_is_cleaned_up_beside_a_manifest_that_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_one(tmp_path, OLD)
    (tmp_path / "manifest.json").write_text("{")
    before = names(tmp_path)
    assert clean_up(str(tmp_path)) == []
    assert names(tmp_path) == before
    assert "cannot remove files of earlier saves" in caplog.text
    with pytest.raises(CorruptFileError):
        Checkpoint.open(str(tmp_path))


def test_a_folder_that_is_taken_away_before_its_first_file_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two saves in one place: one cleans up while the other begins."""
    real, left = os.open, 3

    def racing_open(path: str, flags: int, *rest: Any, **options: Any) -> int:
        nonlocal left
        if flags & os.O_EXCL and left:
            left -= 1
            clean_up(str(tmp_path))
            assert not os.path.exists(os.path.dirname(path)) or "tables/" not in path
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", racing_open)
    save_one(tmp_path, NEW)
    assert left == 0
    Checkpoint.open(str(tmp_path)).verify()
