"""Names of checkpoint files. All except the manifest contain the token of the save."""

from __future__ import annotations

import hashlib
import os
import re
import secrets

from sparsefleet.errors import ConfigError

__all__ = [
    "MANIFEST",
    "TABLE_FOLDERS",
    "absolute_path",
    "dense_file",
    "encode_name",
    "is_token",
    "marker_file",
    "new_token",
    "pending_manifest",
    "pending_marker",
    "removed_file",
    "row_file",
    "step_name",
    "step_of",
    "token_of",
    "workers_file",
]

MANIFEST = "manifest.json"
TABLE_FOLDERS = ("tables", "removed")

_MAX_ENCODED = 180
_CUT_AT = 160
_TOKEN = r"[0-9a-f]{16}"
_OWN_FILE = re.compile(
    rf"(?:(?:manifest|marker|pending|workers)-({_TOKEN})\.json"
    rf"|dense-({_TOKEN})\.safetensors"
    rf"|(?:tables|removed)/[^/]*-({_TOKEN})/\d{{5}}-of-\d{{5}}(?:-\d{{5}})?\.parquet)"
)
_STEP = re.compile(r"step-(\d{12})")
_MAX_STEP = 10**12 - 1


def new_token() -> str:
    """Return a new unique token for a save: 16 hexadecimal digits."""
    return secrets.token_hex(8)


def is_token(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(_TOKEN, text) is not None


def token_of(path: str) -> str | None:
    """Return the token in the path of a checkpoint file, or None for any other file.

    >>> token_of("tables/ads-00112233aabbccdd/00000-of-00002-00000.parquet")
    '00112233aabbccdd'
    >>> token_of("notes.txt") is None
    True
    """
    found = _OWN_FILE.fullmatch(path)
    return next(filter(None, found.groups())) if found else None


def encode_name(name: str) -> str:
    """Encode a table name for a path: every byte except `A-Z a-z 0-9 _ -` becomes `%XX`.

    If the result is longer than 180 characters, a hash replaces everything after the first 160.

    >>> encode_name("ads/eu")
    'ads%2Feu'
    """
    data = name.encode("utf-8")
    encoded = re.sub(rb"[^A-Za-z0-9_-]", lambda m: b"%%%02X" % m[0][0], data).decode("ascii")
    if len(encoded) <= _MAX_ENCODED:
        return encoded
    return f"{encoded[:_CUT_AT]}~{hashlib.blake2b(data, digest_size=8).hexdigest()}"


def row_file(table: str, token: str, shard: int, num_shards: int, part: int) -> str:
    return f"tables/{encode_name(table)}-{token}/{shard:05d}-of-{num_shards:05d}-{part:05d}.parquet"


def removed_file(table: str, token: str, shard: int, num_shards: int) -> str:
    """Return the path of the file that lists the keys a delta removes."""
    return f"removed/{encode_name(table)}-{token}/{shard:05d}-of-{num_shards:05d}.parquet"


def dense_file(token: str) -> str:
    return f"dense-{token}.safetensors"


def workers_file(token: str) -> str:
    return f"workers-{token}.json"


def marker_file(token: str) -> str:
    """Return the path of the file that marks a save in progress."""
    return f"pending-{token}.json"


def pending_marker(token: str) -> str:
    """Return the path of the marker before it is locked."""
    return f"marker-{token}.json"


def pending_manifest(token: str) -> str:
    """Return the path of the manifest before it is committed."""
    return f"manifest-{token}.json"


def step_name(step: int) -> str:
    """Return the folder name of a checkpoint in a series.

    >>> step_name(1200)
    'step-000000001200'
    """
    if not 0 <= step <= _MAX_STEP:
        raise ConfigError(f"a checkpoint's step must be in 0..{_MAX_STEP}, got {step}")
    return f"step-{step:012d}"


def step_of(name: str) -> int | None:
    """Return the step in a folder name, or None if it does not name a checkpoint in a series."""
    found = _STEP.fullmatch(name)
    return int(found[1]) if found else None


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Return `path` as an absolute path; a URL such as `s3://...` is returned unchanged.

    >>> absolute_path("s3://bucket/run"), absolute_path("/data/../run")
    ('s3://bucket/run', '/run')
    """
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))
