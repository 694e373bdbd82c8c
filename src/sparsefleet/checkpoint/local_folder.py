"""A folder on a disk of this machine: everything is synced before it counts."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Mapping
from typing import IO, Any

from sparsefleet.checkpoint.folder import Folder, FoundFile, OutputFile, reported
from sparsefleet.checkpoint.names import TABLE_FOLDERS

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
    """Makes a folder and those above it, each on disk before one in it is made."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    _make_folder(above)
    with contextlib.suppress(FileExistsError):  # another server was faster
        os.mkdir(path)
    _sync_folder(above)


def _remove_if_empty(path: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(path)


class _LocalFile(OutputFile):
    """Unbuffered: rows come in large pieces."""

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
    """Files below a directory."""

    def __init__(self, root: str, storage_options: Mapping[str, Any] | None = None) -> None:
        super().__init__(os.path.abspath(os.path.expanduser(root)), storage_options)

    def make(self) -> None:
        """Makes the folder, if it is not there."""
        with reported("make", self.root):
            _make_folder(self.root)

    def create(self, path: str) -> OutputFile:
        location = self.locate(path)
        with reported("write", location):
            for _ in range(_TRIES):
                # Who cleans up may take the folder away while it is empty: then once more.
                with contextlib.suppress(FileNotFoundError):
                    _make_folder(os.path.dirname(location))
                    return _LocalFile(location)
            raise FileNotFoundError(errno.ENOENT, "its folder is removed again and again")

    def replace(self, path: str, data: bytes, pending: str) -> None:
        file = self.create(pending)
        try:
            file.write(data)
            file.close()
            with reported("write", self.locate(path)):
                os.replace(self.locate(pending), self.locate(path))
                _sync_folder(self.root)
        except BaseException:
            file.discard()
            raise

    def open(self, path: str) -> IO[bytes]:
        location = self.locate(path)
        with reported("read", location):
            return open(location, "rb", buffering=0)

    def size(self, path: str) -> int | None:
        found = self._stat(path)
        return found.st_size if found else None

    def modified(self, path: str) -> float | None:
        found = self._stat(path)
        return found.st_mtime if found else None

    def _stat(self, path: str) -> os.stat_result | None:
        location = self.locate(path)
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
                    with contextlib.suppress(FileNotFoundError):  # just removed by another
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
            location = self.locate(path)
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
