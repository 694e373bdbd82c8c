"""Finding an exported model in its directory, and checking that its files are as written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

from sparsefleet.errors import CheckpointError, ConfigError, CorruptFileError
from sparsefleet.export.checksums import sha256_of
from sparsefleet.export.manifest import MANIFEST, Manifest

__all__ = ["Verify", "open_export", "read_manifest", "verify_export"]

Verify = bool | Literal["deep"]
Opened = TypeVar("Opened")

# An export that is replaced while it is being opened is tried again, the new one then.
_TRIES = 3


class _GoneError(CorruptFileError):
    """A file that the manifest names is not there."""


def read_manifest(directory: str | os.PathLike[str]) -> Manifest:
    """The manifest of the export in `directory`.

    Raises CheckpointError where there is none, or one of another version.
    """
    path = Path(directory) / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{directory} holds no exported model: there is no {MANIFEST}; write one with "
            "Trainer.export or save_inference_model"
        ) from error
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path} is not text: {error}") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return Manifest.from_json(text, str(path))


def open_export(
    directory: str | os.PathLike[str],
    verify: Verify,
    build: Callable[[Path, Manifest], Opened],
    *,
    with_rows: bool = True,
) -> Opened:
    """What `build` makes of the directory and its manifest, once the files have been verified.

    verify: True: all files are there, of the right size, and all but the rows have their
        checksum: the time does not depend on the size of tables. "deep": the rows too.
        False: nothing is checked ahead.
    with_rows: False: the files of rows are not used, and may be missing.
    """
    if verify not in (True, False, "deep"):
        raise ConfigError(f"verify must be True, False or 'deep', got {verify!r}")
    where = Path(directory)
    manifest = read_manifest(where)
    for left in reversed(range(_TRIES)):
        try:
            _verify_files(where, manifest, verify, with_rows)
            return build(where, manifest)
        except (_GoneError, FileNotFoundError) as error:
            before, manifest = manifest, read_manifest(where)
            if left == 0 or manifest == before:
                if isinstance(error, _GoneError):
                    raise
                raise _GoneError(f"a file of the export in {where} is missing: {error}") from error
    raise AssertionError


def verify_export(directory: str | os.PathLike[str]) -> Manifest:
    """Reads all files of an export; raises CorruptFileError naming the first that is wrong."""
    return open_export(directory, "deep", lambda _, manifest: manifest)


def _verify_files(directory: Path, manifest: Manifest, verify: Verify, with_rows: bool) -> None:
    if verify is False:
        return
    rows = {entry.file for entry in manifest.tables}
    for entry in manifest.files:
        if entry.name in rows and not with_rows:
            continue
        path = directory / entry.name
        try:
            size = path.stat().st_size
        except FileNotFoundError as error:
            raise _GoneError(f"{path} is missing, wanted {entry.bytes:,} bytes") from error
        if size != entry.bytes:
            raise CorruptFileError(f"{path} has {size:,} bytes, wanted {entry.bytes:,}")
        if verify == "deep" or entry.name not in rows:
            _verify_checksum(path, entry.sha256)


def _verify_checksum(path: Path, wanted: str) -> None:
    try:
        found = sha256_of(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if found != wanted:
        raise CorruptFileError(
            f"{path} has changed since it was written: its SHA-256 is {found}, wanted {wanted}"
        )
