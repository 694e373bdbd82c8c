"""A folder on a local disk. Data is synced to disk before a file becomes visible."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterable, Mapping
from typing import IO, Any

from sparsefleet.checkpoint.folder import Confinement, Folder, FoundFile, OutputFile, reported
from sparsefleet.checkpoint.names import TABLE_FOLDERS
from sparsefleet.errors import CorruptFileError

__all__ = ["LocalFolder"]

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_TRIES = 100


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(path: str) -> None:
    """Create a folder and its parents, syncing each before creating the next."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    _make_folder(above)
    with contextlib.suppress(FileExistsError):  # another server created it first
        os.mkdir(path)
    _sync_folder(above)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file without blocking; opening a pipe would otherwise wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _remove_if_empty(path: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(path)


class _LocalFile(OutputFile):
    """An unbuffered file; no buffer is needed because rows arrive in large chunks."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._descriptor = os.open(location, _NEW, 0o666)

    def _write(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]

    def close(self) -> None:
        with reported("write", self.location):
            descriptor, self._descriptor = self._descriptor, -1
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            _sync_folder(os.path.dirname(self.location))

    def discard(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        with contextlib.suppress(OSError):
            if descriptor >= 0:
                os.close(descriptor)
            os.unlink(self.location)


class LocalFolder(Folder):
    """A folder in a local directory."""

    def __init__(
        self,
        root: str,
        storage_options: Mapping[str, Any] | None = None,
        within: Confinement | None = None,
    ) -> None:
        super().__init__(os.path.abspath(os.path.expanduser(root)), storage_options, within)

    def allowed(self, path: str) -> str:
        """Return the location of the file. Raises ConfigError if a link leads outside the root."""
        location = self.locate(path)
        if self._within is not None:
            self._within.check(location)
        return location

    def make(self) -> None:
        """Create the folder if it does not exist."""
        with reported("make", self.root):
            _make_folder(self.root)

    def create(self, path: str) -> OutputFile:
        location = self.allowed(path)
        with reported("write", location):
            for _ in range(_TRIES):
                # A concurrent cleanup may remove the empty folder: try again.
                with contextlib.suppress(FileNotFoundError):
                    _make_folder(os.path.dirname(location))
                    return _LocalFile(location)
            raise FileNotFoundError(errno.ENOENT, "another process keeps removing the directory")

    def replace(self, path: str, data: bytes, pending: str) -> None:
        target = self.allowed(path)
        file = self.create(pending)
        try:
            file.write(data)
            file.close()
            with reported("write", target):
                os.replace(self.locate(pending), target)
                _sync_folder(self.root)
        except BaseException:
            file.discard()
            raise

    def open(self, path: str) -> IO[bytes]:
        location = self.allowed(path)
        with reported("read", location):
            file: IO[bytes] = io.FileIO(location, opener=_open_without_waiting)
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                file.close()
                raise CorruptFileError(f"{location}: expected a file, found a device or pipe")
            return file

    def size(self, path: str) -> int | None:
        found = self._stat(path)
        return found.st_size if found else None

    def modified(self, path: str) -> float | None:
        found = self._stat(path)
        return found.st_mtime if found else None

    def _stat(self, path: str) -> os.stat_result | None:
        location = self.allowed(path)
        with reported("read", location):
            try:
                found = os.stat(location)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return found if stat.S_ISREG(found.st_mode) else None

    def files(self) -> list[FoundFile]:
        found = []
        with reported("list", self.root):
            for folder, _, names in os.walk(self.root, onerror=_raise_unless_missing):
                for name in names:
                    location = os.path.join(folder, name)
                    path = os.path.relpath(location, self.root).replace(os.sep, "/")
                    with contextlib.suppress(FileNotFoundError):  # just removed by another process
                        found.append(FoundFile(path, os.lstat(location).st_size))
        return sorted(found)

    def folders(self) -> list[str]:
        with reported("list", self.root):
            try:
                with os.scandir(self.root) as entries:
                    return sorted(entry.name for entry in entries if entry.is_dir())
            except (FileNotFoundError, NotADirectoryError):
                return []

    def remove(self, paths: Iterable[str]) -> None:
        above: set[str] = set()
        for path in paths:
            location = self.allowed(path)
            with reported("remove", location), contextlib.suppress(FileNotFoundError):
                os.unlink(location)
            while (location := os.path.dirname(location)) != os.path.dirname(self.root):
                above.add(location)
        for folder in sorted(above, key=len, reverse=True):
            _remove_if_empty(folder)

    def remove_empty(self) -> None:
        for top in TABLE_FOLDERS:
            for folder, _, _ in os.walk(self.locate(top), topdown=False):
                _remove_if_empty(folder)
        _remove_if_empty(self.root)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error
