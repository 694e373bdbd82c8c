"""What a launcher does for its processes: it reads their logs and has a guard end them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparsefleet.launch.child_process import Guard, LogFollower, LogTail, clean_line


def test_last_line_follows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "workerlog.0"
    tail = LogTail(str(path))
    assert tail.last_line() == ""
    assert tail.last_lines(3) == []
    path.write_bytes(b"one\ntwo\n\n")
    assert tail.last_line() == "two"
    with path.open("ab") as file:
        file.write(b"thr")
    assert tail.last_line() == "thr"
    assert tail.last_lines(2) == ["", "thr"]


def test_only_the_end_of_a_large_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "workerlog.0"
    path.write_text("".join(f"line {number}\n" for number in range(100_000)))
    tail = LogTail(str(path))
    assert tail.last_line() == "line 99999"
    assert tail.last_lines(20)[0] == "line 99980"
    assert all(line.startswith("line ") for line in tail.last_lines(10**6))


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text", "text"),
        (b" 1%\r50%\r99%", "99%"),
        (b"windows\r", "windows"),
        (b"a\tb", "a   b"),
        (b"bell\x07 \xff", "bell \N{REPLACEMENT CHARACTER}"),
    ],
)
def test_line_is_shown_as_a_terminal_would(raw: bytes, shown: str) -> None:
    assert clean_line(raw) == shown


def test_lines_of_an_earlier_start_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("of the first start\n")
    tail = LogTail(str(path), is_continued=True)
    assert (tail.last_line(), tail.last_lines(20)) == ("", [])
    with path.open("a") as log:
        log.write("of the second\n")
    assert (tail.last_line(), tail.last_lines(20)) == ("of the second", ["of the second"])


def test_every_line_is_given_once_and_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "workerlog.0"
    follower = LogFollower(str(path))
    assert follower.new_lines() == []
    path.write_bytes(b"one\n\ntw")
    assert follower.new_lines() == ["one", ""]
    assert follower.new_lines() == []
    with path.open("ab") as file:
        file.write(b"o\n\x1b[31mthree")
    assert follower.new_lines() == ["two"]
    assert follower.last_lines() == ["three"]
    assert follower.last_lines() == []


def test_the_rest_of_a_long_log_comes_whole(tmp_path: Path) -> None:
    path = tmp_path / "workerlog.0"
    path.write_text("".join(f"line {number}\n" for number in range(300_000)))
    follower = LogFollower(str(path))
    lines = follower.new_lines()
    assert len(lines) < 300_000
    assert [*lines, *follower.last_lines()] == [f"line {number}" for number in range(300_000)]


def test_files_and_directories_are_removed_when_the_launcher_is_gone(tmp_path: Path) -> None:
    """What workers leave in shared memory would otherwise stay until the next boot."""
    key, outboxes = tmp_path / "job.key", tmp_path / "outboxes"
    key.touch()
    outboxes.mkdir()
    (outboxes / "worker-0").write_bytes(b"a round")
    with (
        Guard(grace_s=5.0) as guard,  # its pipe closes at the end, as when the launcher is killed
        subprocess.Popen([sys.executable, "-c", "input()"], start_new_session=True) as child,
    ):
        guard.add(child.pid)
        guard.remove_file(str(key))
        guard.remove_directory(str(outboxes))
        assert outboxes.exists()
        child.kill()
    assert not key.exists()
    assert not outboxes.exists()
