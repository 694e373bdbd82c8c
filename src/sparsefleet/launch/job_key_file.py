"""The key by which the processes of one job know each other."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping

from sparsefleet.errors import ConfigError

__all__ = ["given_key", "new_key_file"]

_KEY_BYTES = 32


def given_key(environ: Mapping[str, str], *, is_required: bool) -> bool:
    """True if the environment has a key for the job; its processes inherit it.

    Raises ConfigError if there is none but must be, as on several machines.
    """
    found = "SPARSEFLEET_JOB_KEY" in environ or "SPARSEFLEET_JOB_KEY_FILE" in environ
    if is_required and not found:
        raise ConfigError(
            "a job on several nodes needs a job key that all of them share: set "
            "SPARSEFLEET_JOB_KEY to the same text everywhere (python -c "
            "'import secrets; print(secrets.token_hex())' makes one), or "
            "SPARSEFLEET_JOB_KEY_FILE to a file that holds it"
        )
    return found


@contextlib.contextmanager
def new_key_file() -> Iterator[str]:
    """The path of a file with a new key that only this user can read; removed at the end."""
    descriptor, path = tempfile.mkstemp(prefix="sparsefleet-job-", suffix=".key")  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(_KEY_BYTES) + "\n")
        yield path
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
