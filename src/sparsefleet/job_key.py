"""Finds the job key, the secret that servers and workers use to authenticate each other.

The key is taken from the first of these that is set:

1. the environment variable SPARSEFLEET_JOB_KEY;
2. the file named by SPARSEFLEET_JOB_KEY_FILE;
3. if every endpoint is on this machine, the user's own key file, created on first use.

A key is any text of at least 16 bytes (UTF-8), without surrounding white space; the same text is
the same key in a variable and in a file.

Anyone who can read the key controls the job. Like ssh for private keys, sparsefleet therefore
requires that a key file be owned by you or root, and that nobody else can read or write it.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from sparsefleet import _core
from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import ConfigError

__all__ = ["find_job_key", "user_key_path"]

_NEW_KEY_BYTES = 32


def find_job_key(endpoints: Iterable[str], environ: Mapping[str, str] | None = None) -> bytes:
    """Return the job key for connecting to, or listening on, `endpoints`.

    Raises ConfigError if the key is too short or unreadable, or if there is none; the message says
    how to set one. May create the user's key file; processes that do so concurrently get the
    same key.
    """
    environ = os.environ if environ is None else environ
    text = environ.get("SPARSEFLEET_JOB_KEY")
    if text is not None:
        return _checked(text.encode("utf-8", "surrogateescape"), "SPARSEFLEET_JOB_KEY")
    path = environ.get("SPARSEFLEET_JOB_KEY_FILE")
    if path is not None:
        return _named_key(path)
    outside = [text for text in endpoints if not parse_endpoint(text).is_loopback]
    if outside:
        raise ConfigError(
            f"no job key for {', '.join(outside)}, which is not on this machine. Do one of the "
            "following: set SPARSEFLEET_JOB_KEY to the same text everywhere (python -c 'import "
            "secrets; print(secrets.token_hex())' prints one); set SPARSEFLEET_JOB_KEY_FILE to a "
            "file that holds it; or use loopback endpoints (127.0.0.1), for which a key is "
            "created automatically"
        )
    return _user_key(user_key_path(environ))


def user_key_path(environ: Mapping[str, str] | None = None) -> Path:
    """Return the path of the user's own key file, for processes on one machine."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CONFIG_HOME", "")
    # The XDG base directory specification says to ignore relative paths.
    if os.path.isabs(base):
        return Path(base) / "sparsefleet" / "job.key"
    try:
        home = Path.home()
    except RuntimeError as error:
        raise ConfigError(
            "this user has no home directory for the job key: set SPARSEFLEET_JOB_KEY, "
            "SPARSEFLEET_JOB_KEY_FILE or XDG_CONFIG_HOME"
        ) from error
    return home / ".config" / "sparsefleet" / "job.key"


def _checked(raw: bytes, source: str) -> bytes:
    key = raw.strip()
    if len(key) < _core.MIN_JOB_KEY_BYTES:
        raise ConfigError(
            f"{source}: a job key must have at least {_core.MIN_JOB_KEY_BYTES} bytes, "
            f"got {len(key)}"
        )
    return key


def _named_key(path: str) -> bytes:
    name = f"key file {path} (SPARSEFLEET_JOB_KEY_FILE)"
    try:
        return _checked(_read_private_file(Path(path), name), name)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error


def _user_key(path: Path) -> bytes:
    name = f"your key file {path}"
    try:
        try:
            raw = _read_private_file(path, name)
        except FileNotFoundError:
            _create_key_file(path)
            raw = _read_private_file(path, name)
    except OSError as error:
        raise ConfigError(
            f"{name} cannot be used: {error.strerror}; "
            "set SPARSEFLEET_JOB_KEY or SPARSEFLEET_JOB_KEY_FILE instead"
        ) from error
    return _checked(raw, name)


def _read_private_file(path: Path, name: str) -> bytes:
    """Return the content of a file that only this user and root can read or write.

    `name` identifies the file in error messages. Raises ConfigError if other users have access.
    """
    with open(path, "rb") as file:
        # Check the open file: its path may lead to a different file by now.
        _require_private(os.fstat(file.fileno()), path, name)
        _require_safe_directory(path, name)
        return file.read()


def _require_private(found: os.stat_result, path: Path, name: str) -> None:
    user = os.geteuid()
    if found.st_uid not in (user, 0):
        raise ConfigError(
            f"{name} belongs to user {found.st_uid}, who can read and change it; it must belong to "
            f"you (user {user}) or to root: make your own copy and run `chmod 600` on it"
        )
    # A process that is not root can read a file owned by root, such as a Kubernetes secret, only
    # through the file's group.
    allowed = 0o740 if found.st_uid == 0 and user != 0 else 0o700
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o777 & ~allowed:
        can = "write" if mode & 0o022 else "read"
        raise ConfigError(
            f"{name} has mode {mode:04o}: other users can {can} it. Make it private with "
            f"`chmod 600 {path}`; if others may have seen the key, make a new one"
        )


def _require_safe_directory(path: Path, name: str) -> None:
    """Raise ConfigError if every user can replace files in the key's directory.

    The sticky bit, which is set on /tmp, prevents that.
    """
    directory = path.resolve().parent
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise ConfigError(
            f"{name} is in {directory}, which has mode {mode:04o}: every user can replace files "
            f"there. Move the key elsewhere, or run `chmod o-w {directory}`"
        )


def _create_key_file(path: Path) -> None:
    """Create the file atomically; if another process created it first, keep that file."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(_NEW_KEY_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # unlike rename, fails if the name is taken
        except FileExistsError:
            return
    finally:
        os.unlink(draft)
