"""Where the job key comes from: the secret by which servers and workers know each other.

In this order:

1. the environment variable SPARSEFLEET_JOB_KEY;
2. the file named by SPARSEFLEET_JOB_KEY_FILE;
3. if every endpoint is on this machine, the user's own key file, made on first use.

A key is any text of at least 16 bytes, used as it is (UTF-8) without white space around it;
so the same text means the same key in a variable and in a file.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import ConfigError

__all__ = ["find_job_key", "user_key_path"]

MIN_KEY_BYTES = 16  # kMinJobKeyBytes of core/transport/security.h
_NEW_KEY_BYTES = 32


def find_job_key(endpoints: Iterable[str], environ: Mapping[str, str] | None = None) -> bytes:
    """The job key for talking to, or listening on, `endpoints`.

    Raises ConfigError for a key that is too short or cannot be read, and, saying what can be
    done, where there is none. May create the user's key file; two processes that do so
    at once get the same key.
    """
    environ = os.environ if environ is None else environ
    text = environ.get("SPARSEFLEET_JOB_KEY")
    if text is not None:
        return _checked(text.encode("utf-8", "surrogateescape"), "SPARSEFLEET_JOB_KEY")
    path = environ.get("SPARSEFLEET_JOB_KEY_FILE")
    if path is not None:
        return _checked(_read_named_file(path), f"key file {path} (SPARSEFLEET_JOB_KEY_FILE)")
    outside = [text for text in endpoints if not parse_endpoint(text).is_loopback]
    if outside:
        raise ConfigError(
            f"no job key for {', '.join(outside)}, which is not on this machine. Do one of: "
            "set SPARSEFLEET_JOB_KEY to the same text everywhere (python -c "
            "'import secrets; print(secrets.token_hex())' makes one); "
            "set SPARSEFLEET_JOB_KEY_FILE to a file that holds it; "
            "or use loopback endpoints (127.0.0.1), for which a key is made by itself"
        )
    return _user_key(user_key_path(environ))


def user_key_path(environ: Mapping[str, str] | None = None) -> Path:
    """The user's own key file, used between processes of one machine."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CONFIG_HOME", "")
    # The XDG base directory specification: a relative path is to be ignored.
    if os.path.isabs(base):
        return Path(base) / "sparsefleet" / "job.key"
    try:
        home = Path.home()
    except RuntimeError as error:
        raise ConfigError(
            "this user has no home directory to keep a job key in: set SPARSEFLEET_JOB_KEY, "
            "SPARSEFLEET_JOB_KEY_FILE or XDG_CONFIG_HOME"
        ) from error
    return home / ".config" / "sparsefleet" / "job.key"


def _checked(raw: bytes, source: str) -> bytes:
    key = raw.strip()
    if len(key) < MIN_KEY_BYTES:
        raise ConfigError(
            f"{source}: a job key must have at least {MIN_KEY_BYTES} bytes, got {len(key)}"
        )
    return key


def _read_named_file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"key file {path!r} (SPARSEFLEET_JOB_KEY_FILE) cannot be read: {error.strerror}"
        ) from error


def _user_key(path: Path) -> bytes:
    try:
        try:
            return _read_own_file(path)
        except FileNotFoundError:
            _create_key_file(path)
            return _read_own_file(path)
    except OSError as error:
        raise ConfigError(
            f"your key file {path} cannot be used: {error.strerror}; "
            "set SPARSEFLEET_JOB_KEY or SPARSEFLEET_JOB_KEY_FILE instead"
        ) from error


def _read_own_file(path: Path) -> bytes:
    with open(path, "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid():
            raise ConfigError(
                f"key file {path} belongs to user {found.st_uid}, not to you "
                f"({os.geteuid()}): remove it, and a new one is made"
            )
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077:
            raise ConfigError(
                f"key file {path} has mode {mode:04o}, so others may have read it: "
                "remove it, and a new one is made with mode 0600"
            )
        return _checked(file.read(), f"key file {path}")


def _create_key_file(path: Path) -> None:
    """Makes the file whole or not at all; leaves one that another process made meanwhile."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(_NEW_KEY_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # unlike rename, fails where the name is taken
        except FileExistsError:
            return
    finally:
        os.unlink(draft)
