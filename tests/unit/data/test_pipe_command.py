from __future__ import annotations

import gzip
import os
import sys
import time
from pathlib import Path

import pytest
from tests.unit.data.data_files import ONE_ID, read_ids, write_ids

from sparsefleet.data import Reader, ReaderConfig
from sparsefleet.errors import BadLineError, ConfigError, PipeCommandError


def python(script: str) -> list[str]:
    return [sys.executable, "-S", "-c", script]


ADD_COUNTS = python("import sys\nfor line in sys.stdin: print(1, line.strip())")


def piped(path: Path | list[Path], command: list[str], **settings: object) -> Reader:
    config = ReaderConfig(pipe_command=command, **settings)  # type: ignore[arg-type]
    return Reader(path, ONE_ID, 100, config=config)


def test_every_file_goes_through_a_command_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"3\n4\n"))
    assert read_ids(piped([tmp_path / "a", tmp_path / "b.gz"], ADD_COUNTS)) == [1, 2, 3, 4]


def test_more_than_pipes_hold_goes_through(tmp_path: Path) -> None:
    write_ids(tmp_path / "a", range(60_000))
    noisy = python("import sys\nsys.stderr.write('x' * 300000)\nsys.stdout.write(sys.stdin.read())")
    assert read_ids(piped(tmp_path / "a", noisy)) == list(range(60_000))
    assert read_ids(piped(tmp_path / "a", ["cat"])) == list(range(60_000))


def test_a_command_may_leave_input_unread(tmp_path: Path) -> None:
    write_ids(tmp_path / "a", range(100_000))
    assert read_ids(piped(tmp_path / "a", ["head", "-n", "3"])) == [0, 1, 2]


def test_words_are_not_read_by_a_shell_but_a_shell_command_is(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "a", [1, 2, 3])
    with pytest.raises(PipeCommandError, match="cannot start"):
        list(piped(path, ["cat | tail -n 1"]))
    config = ReaderConfig(shell_command="cat | tail -n 1")
    assert read_ids(Reader(path, ONE_ID, 10, config=config)) == [3]


def test_a_command_that_fails_is_reported_with_file_code_and_stderr(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "a", [1])
    script = "import sys\nprint('1 7')\nsys.stderr.write('out of luck')\nsys.exit(3)"
    with pytest.raises(PipeCommandError) as caught:
        list(piped(path, python(script)))
    message = str(caught.value)
    assert message.startswith(f"{path}: pipe command ")
    assert "exit code 3, stderr: out of luck" in message
    killed = python("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(PipeCommandError, match="killed by SIGKILL"):
        list(piped(path, killed))


def test_a_command_that_prints_garbage_is_reported_with_the_line_and_stderr(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "a", [1])
    script = "import sys\nsys.stderr.write('odd')\nsys.stderr.flush()\nprint('garbage')"
    with pytest.raises(BadLineError, match="a, line 1, column 1: .*'garbage'.*pipe command"):
        list(piped(path, python(script)))


def process_is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").exists() and " Z " in Path(f"/proc/{pid}/stat").read_text()


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while not process_is_gone(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_a_command_that_hangs_is_ended_after_the_limit(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "a", [1])
    hangs = ["sh", "-c", f"echo $$ > {tmp_path}/pid; sleep 600"]
    with pytest.raises(PipeCommandError, match=r"wrote nothing for 0.3 s .*still running"):
        list(piped(path, hangs, pipe_timeout_s=0.3))
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


def test_leaving_the_loop_ends_the_command(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "a", [1])
    script = f"echo $$ > {tmp_path}/pid; yes '1 5'"
    config = ReaderConfig(shell_command=script, queue_batches=1)
    with Reader(path, ONE_ID, 10, config=config) as reader:
        for batch in reader:
            assert batch["id"].tolist() == [5] * 10
            break
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


def test_commands_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="shell_command='cat -n' to run it in a shell"):
        ReaderConfig(pipe_command="cat -n")
    with pytest.raises(ConfigError, match="but got both"):
        ReaderConfig(pipe_command=["cat"], shell_command="cat")
    with pytest.raises(ConfigError, match="a non-empty list of strings"):
        ReaderConfig(pipe_command=[])


def test_what_a_shell_has_left_in_the_background_ends_with_the_reading(tmp_path: Path) -> None:
    write_ids(tmp_path / "a", range(60_000))
    told = tmp_path / "told"
    script = f"sleep 600 & echo $! > {told}; cat"
    config = ReaderConfig(shell_command=script, pipe_timeout_s=0.5)
    with pytest.raises(PipeCommandError, match="read and wrote nothing"):
        read_ids(Reader(tmp_path / "a", ONE_ID, 100, config=config))
    assert has_ended(int(told.read_text()))
    for batch in Reader(tmp_path / "a", ONE_ID, 100, config=config):
        assert len(batch["id"]) == 100
        break
    assert has_ended(int(told.read_text()))


def test_a_command_that_has_closed_its_pipes_and_stays_is_given_up(tmp_path: Path) -> None:
    write_ids(tmp_path / "a", range(3))
    config = ReaderConfig(shell_command="cat; exec 1>&- 2>&-; sleep 600", pipe_timeout_s=0.5)
    with pytest.raises(PipeCommandError, match="read and wrote nothing"):
        read_ids(Reader(tmp_path / "a", ONE_ID, 100, config=config))


def has_ended(process: int) -> bool:
    """Return whether it has ended; a zombie counts."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False
