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
STRANGER = 12_345  # a user other than the one who runs the tests, and than root


def private_file(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def make_owner(monkeypatch: pytest.MonkeyPatch, path: Path, *, owner: int, user: int) -> None:
    """Make `find_job_key` see a file of one user while it runs as another."""
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        found = real(descriptor)
        if found.st_ino != path.stat().st_ino:
            return found
        return os.stat_result((*found[:4], owner, *found[5:10]))

    monkeypatch.setattr(os, "fstat", fstat)
    monkeypatch.setattr(os, "geteuid", lambda: user)


def test_variable_comes_first_and_is_stripped(tmp_path: Path) -> None:
    other = tmp_path / "key"
    other.write_text("another key, long enough")
    environ = {"SPARSEFLEET_JOB_KEY": f" {KEY}\n", "SPARSEFLEET_JOB_KEY_FILE": str(other)}
    assert find_job_key(OUTSIDE, environ) == KEY.encode()


def test_file_comes_second_and_means_the_same_as_the_variable(tmp_path: Path) -> None:
    path = private_file(tmp_path / "key", KEY + "\n")
    assert find_job_key(OUTSIDE, {"SPARSEFLEET_JOB_KEY_FILE": str(path)}) == KEY.encode()


@pytest.mark.parametrize("text", ["", "   ", "fifteen bytes!!"])
def test_short_key_is_refused_naming_source_and_length(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"SPARSEFLEET_JOB_KEY: .* at least 16 bytes, got"):
        find_job_key(LOOPBACK, {"SPARSEFLEET_JOB_KEY": text})
    path = private_file(tmp_path / "key", text)
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


@pytest.mark.parametrize("is_named", [False, True], ids=["own", "named"])
@pytest.mark.parametrize(
    ("mode", "can"),
    [(0o640, "read"), (0o604, "read"), (0o660, "write"), (0o644, "read"), (0o602, "write")],
)
def test_key_file_open_to_others_is_refused_saying_what_to_do(
    is_named: bool, mode: int, can: str, tmp_path: Path
) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    find_job_key(LOOPBACK, environ)
    path = user_key_path(environ)
    path.chmod(mode)
    if is_named:
        environ = {"SPARSEFLEET_JOB_KEY_FILE": str(path)}
    with pytest.raises(ConfigError) as caught:
        find_job_key(LOOPBACK, environ)
    message = str(caught.value)
    assert f"has mode {mode:04o}: other users can {can} it" in message
    assert f"chmod 600 {path}" in message
    path.chmod(0o400)
    find_job_key(LOOPBACK, environ)


def test_key_file_of_another_user_is_refused_even_by_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = private_file(tmp_path / "key", KEY)
    for user in (os.geteuid(), 0):
        make_owner(monkeypatch, path, owner=STRANGER, user=user)
        with pytest.raises(ConfigError, match=f"belongs to user {STRANGER}.*must belong to you"):
            find_job_key(LOOPBACK, {"SPARSEFLEET_JOB_KEY_FILE": str(path)})


def test_key_file_of_root_may_be_given_to_a_group_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = private_file(tmp_path / "key", KEY)
    environ = {"SPARSEFLEET_JOB_KEY_FILE": str(path)}
    make_owner(monkeypatch, path, owner=0, user=STRANGER)
    for mode in (0o400, 0o440, 0o640):
        path.chmod(mode)
        assert find_job_key(OUTSIDE, environ) == KEY.encode()
    for mode in (0o660, 0o444, 0o642):
        path.chmod(mode)
        with pytest.raises(ConfigError, match=f"mode {mode:04o}"):
            find_job_key(OUTSIDE, environ)


def test_key_file_in_a_directory_that_all_may_write_to_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "shared"
    directory.mkdir()
    link = tmp_path / "link"
    link.symlink_to(private_file(directory / "key", KEY))
    for mode, is_safe in ((0o777, False), (0o1777, True), (0o775, True), (0o703, False)):
        directory.chmod(mode)
        for path in (directory / "key", link):
            environ = {"SPARSEFLEET_JOB_KEY_FILE": str(path)}
            if is_safe:
                assert find_job_key(OUTSIDE, environ) == KEY.encode()
            else:
                with pytest.raises(ConfigError, match=f"{directory}, which has mode {mode:04o}"):
                    find_job_key(OUTSIDE, environ)


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
