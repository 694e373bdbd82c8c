"""A job key file that other users can read or write used to be accepted silently."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command_process import DEADLINE_S

from sparsefleet.errors import ConfigError
from sparsefleet.store import RemoteStore

MODES = (0o644, 0o620)


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "job.key"
    path.write_text("a key that all processes of the job share\n")
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY_FILE", str(path))
    return path


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sparsefleet", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@pytest.mark.parametrize("mode", MODES)
def test_no_command_uses_it_and_each_says_what_to_do(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    script = key_file.parent / "train.py"
    script.write_text(f"open({str(key_file.parent / 'ran')!r}, 'w')\n")
    endpoint = "127.0.0.1:0"
    for words in (
        ("server", "--endpoint", endpoint),
        ("stats", "--endpoints", "127.0.0.1:1"),
        ("launch", "--servers", "0", "--log-dir", str(key_file.parent / "logs"), str(script)),
    ):
        ended = run(*words)
        assert ended.returncode == 1, ended
        assert f"chmod 600 {key_file}" in ended.stderr
        assert f"{mode:04o}" in ended.stderr
        assert "Traceback" not in ended.stderr
    assert not os.path.exists(key_file.parent / "ran")


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_does_not_use_it(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    with pytest.raises(ConfigError, match=f"chmod 600 {key_file}"):
        RemoteStore(["127.0.0.1:1"])
