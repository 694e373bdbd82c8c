from __future__ import annotations

from pathlib import Path

from sparsefleet.launch.child_process import LogFollower


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
