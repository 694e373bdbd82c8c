from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparsefleet import job_key
from sparsefleet.errors import ConfigError
from sparsefleet.job_key import find_job_key, user_key_path

LOOPBACK = ["127.0.0.1:9100", "[::1]:9101"]
OUTSIDE = ["127.0.0.1:9100", "10.0.0.7:9100"]
KEY = "sixteen bytes ok"


def test_variable_comes_first_and_is_stripped(tmp_path: Path) -> None:
    other = tmp_path / "key"
    other.write_text("another key, long enough")
    environ = {"SPARSEFLEET_JOB_KEY": f" {KEY}\n", "SPARSEFLEET_JOB_KEY_FILE": str(other)}
    assert find_job_key(OUTSIDE, environ) == KEY.encode()


def test_file_comes_second_and_means_the_same_as_the_variable(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(KEY + "\n")
    assert find_job_key(OUTSIDE, {"SPARSEFLEET_JOB_KEY_FILE": str(path)}) == KEY.encode()


@pytest.mark.parametrize("text", ["", "   ", "fifteen bytes!!"])
def test_short_key_is_refused_naming_source_and_length(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"SPARSEFLEET_JOB_KEY: .* at least 16 bytes, got"):
        find_job_key(LOOPBACK, {"SPARSEFLEET_JOB_KEY": text})
    path = tmp_path / "key"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"SPARSEFLEET_JOB_KEY_FILE\): .* at least 16 bytes, got"):
        find_job_key(LOOPBACK, {"SPARSEFLEET_JOB_KEY_FILE": str(path)})


def test_missing_key_file_is_an_error_even_on_loopback(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(ConfigError, match="No such file"):
        find_job_key(LOOPBACK, {"SPARSEFLEET_JOB_KEY_FILE": missing})


def test_without_key_an_endpoint_elsewhere_is_an_error_with_three_ways_out() -> None:
    with pytest.raises(ConfigError) as caught:
        find_job_key(OUTSIDE, {})
    message = str(caught.value)
    assert "10.0.0.7:9100" in message
    assert "127.0.0.1:9100" not in message
    for way in ("SPARSEFLEET_JOB_KEY ", "SPARSEFLEET_JOB_KEY_FILE", "loopback"):
        assert way in message
    assert not user_key_path().exists()


def test_own_key_file_is_made_once_with_mode_0600() -> None:
    first = find_job_key(LOOPBACK)
    path = user_key_path()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(bytes.fromhex(first.decode())) == 32
    assert find_job_key(LOOPBACK) == first
    assert os.listdir(path.parent) == [path.name]


def test_own_key_file_is_private_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        find_job_key(LOOPBACK)
    finally:
        os.umask(before)
    assert stat.S_IMODE(user_key_path().stat().st_mode) == 0o600


def test_two_that_make_the_key_at_once_get_the_same() -> None:
    with ThreadPoolExecutor(16) as pool:
        keys = set(pool.map(find_job_key, [LOOPBACK] * 64))
    assert len(keys) == 1


def test_file_made_by_another_process_meanwhile_is_kept() -> None:
    path = user_key_path()
    path.parent.mkdir(parents=True)
    path.write_text(KEY)
    path.chmod(0o600)
    job_key._create_key_file(path)
    assert path.read_text() == KEY
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_own_key_file_that_others_can_read_is_refused(mode: int) -> None:
    find_job_key(LOOPBACK)
    user_key_path().chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}"):
        find_job_key(LOOPBACK)


def test_own_key_file_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    find_job_key(LOOPBACK)
    stranger = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    with pytest.raises(ConfigError, match="belongs to user"):
        find_job_key(LOOPBACK)


def test_directory_that_cannot_be_made_is_a_config_error(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        find_job_key(LOOPBACK, {"XDG_CONFIG_HOME": str(blocker)})


def test_relative_xdg_directory_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    wanted = tmp_path / ".config" / "sparsefleet" / "job.key"
    assert user_key_path({"XDG_CONFIG_HOME": "relative"}) == wanted
    assert user_key_path({}) == wanted
