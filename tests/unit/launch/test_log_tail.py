from __future__ import annotations

from pathlib import Path

import pytest

from sparsefleet.launch.child_process import LogTail, clean_line


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
