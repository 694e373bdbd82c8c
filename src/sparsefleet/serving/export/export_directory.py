"""Open an exported model's directory, verify its files, or replace it atomically.

A directory always holds one complete export or none.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeVar

from sparsefleet.checkpoint.folder import sync_to_disk
from sparsefleet.errors import CheckpointError, ConfigError, CorruptFileError, IoError
from sparsefleet.serving.export.manifest import MANIFEST, ExportedFile, ExportManifest

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "PendingExport",
    "Verify",
    "manifest_text",
    "open_export",
    "read_manifest",
    "sha256_of",
    "verify_export",
]

Verify = bool | Literal["deep"]
Opened = TypeVar("Opened")

# If an export is replaced while it is being opened, retry with the new one.
_TRIES = 3
_MOST_MANIFEST_BYTES = 64 << 20


class _GoneError(CorruptFileError):
    """Raised if a file named in the manifest is missing."""


def read_manifest(directory: str | os.PathLike[str]) -> ExportManifest:
    """Read the manifest of the export in `directory`.

    Raises CheckpointError if there is none, or if this version of sparsefleet cannot read it.
    """
    return ExportManifest.from_json(manifest_text(directory), str(Path(directory) / MANIFEST))


def manifest_text(directory: str | os.PathLike[str]) -> str:
    """Return the text of the manifest in `directory` without parsing it; reject oversized files."""
    path = Path(directory) / MANIFEST
    try:
        size = _size_of(path)
        if size > _MOST_MANIFEST_BYTES:
            raise CorruptFileError(
                f"{path} has {size:,} bytes, expected at most {_MOST_MANIFEST_BYTES:,}"
            )
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{directory} contains no exported model, because it has no {MANIFEST}; write one with "
            "Trainer.export or save_inference_model"
        ) from error
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path} is not text: {error}") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def open_export(
    directory: str | os.PathLike[str],
    verify: Verify,
    build: Callable[[Path, ExportManifest], Opened],
    *,
    with_rows: bool = True,
) -> Opened:
    """Verify the files and return the result of `build` for the directory and its manifest.

    verify: True checks that all files exist with the right size, and the checksums of all files but
        the rows, so the time does not depend on table size. "deep" checks the rows too. False
        checks nothing in advance.
    with_rows: if False, the row files are not used and may be missing.
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
                raise _GoneError(f"a file in the export in {where} is missing: {error}") from error
    raise AssertionError


def verify_export(directory: str | os.PathLike[str]) -> ExportManifest:
    """Read all files of an export; raise CorruptFileError for the first bad file."""
    return open_export(directory, "deep", lambda _, manifest: manifest)


def _verify_files(
    directory: Path, manifest: ExportManifest, verify: Verify, with_rows: bool
) -> None:
    if verify is False:
        return
    rows = {entry.file for entry in manifest.tables}
    for entry in manifest.files:
        if entry.name in rows and not with_rows:
            continue
        path = directory / entry.name
        try:
            size = _size_of(path)
        except FileNotFoundError as error:
            raise _GoneError(f"{path} is missing, expected {entry.bytes:,} bytes") from error
        if size != entry.bytes:
            raise CorruptFileError(f"{path} has {size:,} bytes, expected {entry.bytes:,}")
        if verify == "deep" or entry.name not in rows:
            _verify_checksum(path, entry.sha256)


def _size_of(path: Path) -> int:
    """Return the size of a file; raise CorruptFileError for a device or a pipe, which may have no
    end.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise CorruptFileError(f"{path} is not a regular file")
    return found.st_size


def _verify_checksum(path: Path, wanted: str) -> None:
    try:
        found = sha256_of(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if found != wanted:
        raise CorruptFileError(
            f"{path} has changed since it was written: its SHA-256 is {found}, expected {wanted}"
        )


_TOKEN_BYTES = 8
# Files written by any export; other files in the directory are left alone.
_OWN_NAME = re.compile(rf"\.?[a-z0-9-]+-[0-9a-f]{{{2 * _TOKEN_BYTES}}}\.[a-z0-9]+")


class PendingExport:
    """An export being written: files with unique names, committed by renaming the manifest.

    If the block exits without `commit`, the new files are removed and the previous export is
    unchanged. Files that no manifest names, left by a killed export, are removed by the next
    commit. Only one export may run per directory; a second is rejected, because a commit would
    remove its files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._token = secrets.token_hex(_TOKEN_BYTES)
        self._entries: dict[str, ExportedFile] = {}
        self._committed = False
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise IoError(f"the export cannot be written to {self.directory}: {error}") from error
        _refuse_what_is_not_ours(self.directory / MANIFEST)
        self._lock = _lock(self.directory)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._committed:
            self._remove(keep=None)
        if self._lock is not None:
            os.close(self._lock)
        if isinstance(error, OSError) and not isinstance(error, IoError):
            raise IoError(
                f"the export to {self.directory} failed, and the previous contents are unchanged: "
                f"{error}"
            ) from error

    @property
    def files(self) -> tuple[ExportedFile, ...]:
        """Return the files sealed so far."""
        return tuple(self._entries.values())

    def path(self, stem: str, suffix: str) -> Path:
        """Return the path for a new file; call `seal` once it is written.

        suffix: the suffix of the file name, without a dot.
        """
        return self.directory / f"{stem}-{self._token}.{suffix}"

    def scratch(self, stem: str) -> Path:
        """Return a path for a temporary file outside the export; the caller must remove it."""
        return self.directory / f".{stem}-{self._token}.tmp"

    def seal(self, path: Path) -> str:
        """Flush a complete file to disk, add it to the export's files and return its name."""
        with path.open("rb") as file:
            os.fsync(file.fileno())
        size = path.stat().st_size
        self._entries[path.name] = ExportedFile(name=path.name, bytes=size, sha256=sha256_of(path))
        return path.name

    def discard(self, suffix: str) -> None:
        """Drop the files with this suffix from the export."""
        for path in self.directory.glob(f"*-{self._token}.{suffix}"):
            self._entries.pop(path.name, None)
            path.unlink()

    def commit(self, manifest: ExportManifest) -> None:
        """Commit the export and remove the files of earlier exports."""
        beside = self.scratch("manifest")
        with beside.open("w", encoding="utf-8") as file:
            file.write(manifest.to_json())
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self.directory / MANIFEST)
        self._committed = True
        sync_to_disk(self.directory)
        self._remove(keep={entry.name for entry in manifest.files})

    def _remove(self, keep: set[str] | None) -> None:
        """Remove all export files except `keep`, or only this export's files if `keep` is None."""
        for path in self.directory.glob("*"):
            if not _OWN_NAME.fullmatch(path.name):
                continue
            if self._token in path.name if keep is None else path.name not in keep:
                path.unlink(missing_ok=True)


def _lock(directory: Path) -> int | None:
    """Lock out other exports; return the lock's descriptor, or None if locks are not supported."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise IoError(
                f"another export is being written to {directory}; wait for it, or export to a "
                "different directory"
            ) from error
        return None
    return descriptor


def _refuse_what_is_not_ours(manifest: Path) -> None:
    """Raise if the directory holds something other than an export, such as a checkpoint."""
    try:
        read_manifest(manifest.parent)
    except CorruptFileError:
        return  # left over from an export
    except CheckpointError as error:
        if manifest.exists():
            raise CheckpointError(f"{error}; export to a different directory") from error


_PIECE_BYTES = 1 << 20


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of the file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
