"""Writing an export so that its directory holds a whole one at every moment, or none."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from sparsefleet.errors import CheckpointError, CorruptFileError, IoError
from sparsefleet.export.checksums import sha256_of
from sparsefleet.export.manifest import MANIFEST, FileEntry, Manifest
from sparsefleet.export.opened_export import read_manifest

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PendingExport"]

_TOKEN_BYTES = 8
# Files that an export wrote, whichever; others in the directory are not touched.
_OWN_NAME = re.compile(rf"\.?[a-z0-9-]+-[0-9a-f]{{{2 * _TOKEN_BYTES}}}\.[a-z0-9]+")


class PendingExport:
    """Files under names of their own, put in force by renaming the manifest.

    Left without `commit`, it removes its files again and the export that was there before is as
    it was. Files that no manifest names, of an export that was killed, go with the next commit.
    One at a time in a directory: another is refused, as the commit would remove its files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._token = secrets.token_hex(_TOKEN_BYTES)
        self._entries: dict[str, FileEntry] = {}
        self._committed = False
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise IoError(f"no export can be written to {self.directory}: {error}") from error
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
                f"the export to {self.directory} failed, what was there before is unchanged: "
                f"{error}"
            ) from error

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Those sealed so far."""
        return tuple(self._entries.values())

    def path(self, stem: str, suffix: str) -> Path:
        """Where to write a file; `seal` it then. `suffix` without the dot."""
        return self.directory / f"{stem}-{self._token}.{suffix}"

    def scratch(self, stem: str) -> Path:
        """A file that is not part of the export; whoever makes it removes it."""
        return self.directory / f".{stem}-{self._token}.tmp"

    def seal(self, path: Path) -> str:
        """The file is whole: it goes to the disk and into the list. Returns its name."""
        with path.open("rb") as file:
            os.fsync(file.fileno())
        size = path.stat().st_size
        self._entries[path.name] = FileEntry(name=path.name, bytes=size, sha256=sha256_of(path))
        return path.name

    def discard(self, suffix: str) -> None:
        """Files with this suffix are not to be part of the export after all."""
        for path in self.directory.glob(f"*-{self._token}.{suffix}"):
            self._entries.pop(path.name, None)
            path.unlink()

    def commit(self, manifest: Manifest) -> None:
        """Puts the export in force; removes files of exports before it."""
        beside = self.scratch("manifest")
        with beside.open("w", encoding="utf-8") as file:
            file.write(manifest.to_json())
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self.directory / MANIFEST)
        self._committed = True
        _sync_directory(self.directory)
        self._remove(keep={entry.name for entry in manifest.files})

    def _remove(self, keep: set[str] | None) -> None:
        """Removes own files: all but those kept, or, with None, only those of this export."""
        for path in self.directory.glob("*"):
            if not _OWN_NAME.fullmatch(path.name):
                continue
            if self._token in path.name if keep is None else path.name not in keep:
                path.unlink(missing_ok=True)


def _lock(directory: Path) -> int | None:
    """Holds the directory for one export; None where the file system has no locks."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise IoError(
                f"another export is being written to {directory}: wait for it, or export to "
                "another directory"
            ) from error
        return None
    return descriptor


def _refuse_what_is_not_ours(manifest: Path) -> None:
    """A directory of something else, as of a checkpoint, is not written into."""
    try:
        read_manifest(manifest.parent)
    except CorruptFileError:
        return  # the remains of an export
    except CheckpointError as error:
        if manifest.exists():
            raise CheckpointError(f"{error}; export to another directory") from error


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
