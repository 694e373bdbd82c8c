"""A folder of files, on this machine or behind fsspec, as checkpoints need it."""

from __future__ import annotations

import abc
import posixpath
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any, NamedTuple

from sparsefleet.errors import (
    CheckpointError,
    CheckpointIoError,
    CheckpointMissingError,
)

__all__ = ["Folder", "FoundFile", "OutputFile", "checksum_text", "open_folder", "reported"]

READ_BYTES = 4 << 20


class FoundFile(NamedTuple):
    """A file of a folder."""

    path: str
    """Relative to the folder, with slashes."""
    num_bytes: int


@contextmanager
def reported(
    action: str, path: str, kinds: tuple[type[Exception], ...] = (OSError,)
) -> Iterator[None]:
    """Turns what a file system raises into errors that name the file."""
    try:
        yield
    except CheckpointError:
        raise
    except kinds as error:
        if action == "read" and isinstance(error, FileNotFoundError):
            raise CheckpointMissingError(f"cannot read {path}: no such file") from error
        cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CheckpointIoError(f"cannot {action} {path}: {cause}") from error


def checksum_text(crc: int) -> str:
    """How checksums are written in manifests: CRC-32 as in gzip and PNG.

    >>> checksum_text(zlib.crc32(b"123456789"))
    'crc32:cbf43926'
    """
    return f"crc32:{crc:08x}"


class OutputFile(abc.ABC):
    """A new file. It is whole and on the disk when `close()` has returned, and not before."""

    _kinds: tuple[type[Exception], ...] = (OSError,)
    """What it raises."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.num_bytes = 0
        self._crc = 0

    @property
    def checksum(self) -> str:
        """Of what has been written so far."""
        return checksum_text(self._crc)

    def write(self, data: bytes | memoryview) -> None:
        with reported("write", self.location, self._kinds):
            self._write(data)
        self._crc = zlib.crc32(data, self._crc)
        self.num_bytes += len(data)

    @abc.abstractmethod
    def _write(self, data: bytes | memoryview) -> None: ...

    @abc.abstractmethod
    def close(self) -> None: ...

    @abc.abstractmethod
    def discard(self) -> None:
        """Gives the file up; never raises."""


class Folder(abc.ABC):
    """Files by their path relative to `root`. Thread-safe."""

    _kinds: tuple[type[Exception], ...] = (OSError,)
    """What its files raise."""

    def __init__(self, root: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.root = root
        """As people write it: a path, or a URL."""
        self._options = dict(storage_options or {})

    def locate(self, path: str) -> str:
        """The file as people write it."""
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    def sub(self, path: str) -> Folder:
        """Another folder, by its path relative to this one (`..` leads up) or its whole path."""
        return open_folder(path if "://" in path else joined(self.root, path), self._options)

    @abc.abstractmethod
    def create(self, path: str) -> OutputFile:
        """A new file for writing; folders on the way are made."""

    @abc.abstractmethod
    def replace(self, path: str, data: bytes, pending: str) -> None:
        """Puts `data` in force at `path` in one step; on disk when it returns.

        `pending` is where it may lie before.
        """

    @abc.abstractmethod
    def open(self, path: str) -> IO[bytes]:
        """The file for reading."""

    @abc.abstractmethod
    def size(self, path: str) -> int | None:
        """Bytes of the file; None if there is none."""

    @abc.abstractmethod
    def modified(self, path: str) -> float | None:
        """When it was last written, in seconds since 1970; None if that is not known."""

    @abc.abstractmethod
    def files(self) -> list[FoundFile]:
        """All files below; none if the folder is not there."""

    @abc.abstractmethod
    def folders(self) -> list[str]:
        """Names of the folders directly below."""

    @abc.abstractmethod
    def remove(self, paths: Iterable[str]) -> None:
        """Removes files, and folders that are empty then. One that is gone already is fine."""

    @abc.abstractmethod
    def remove_empty(self) -> None:
        """Removes folders of tables without files, and then the folder itself if it is empty."""

    def reading(self, path: str) -> AbstractContextManager[None]:
        """Turns what reading the file raises into errors that name it."""
        return reported("read", self.locate(path), self._kinds)

    def read(self, path: str) -> bytes:
        """The whole file."""
        with self.reading(path), self.open(path) as file:
            return file.read()

    def checksum(self, path: str) -> tuple[int, str]:
        """Bytes and checksum of the file as it is, read once."""
        crc = size = 0
        with self.reading(path), self.open(path) as file:
            while block := file.read(READ_BYTES):
                crc = zlib.crc32(block, crc)
                size += len(block)
        return size, checksum_text(crc)


def open_folder(path: str, storage_options: Mapping[str, Any] | None = None) -> Folder:
    """The folder at a path or URL; it need not exist.

    >>> open_folder("memory://models/ads").locate("manifest.json")
    'memory://models/ads/manifest.json'
    """
    from sparsefleet.checkpoint.local_folder import LocalFolder
    from sparsefleet.checkpoint.remote_folder import RemoteFolder

    path = str(path)
    for prefix in ("file://", "local://"):
        if path.startswith(prefix):
            return LocalFolder(path[len(prefix) :], storage_options)
    if "://" in path:
        return RemoteFolder(path, storage_options or {})
    return LocalFolder(path, storage_options)


def joined(root: str, path: str) -> str:
    """`root/path` with `..` worked out, for paths and URLs alike.

    >>> joined("s3://bucket/run/step-2", "../step-1")
    's3://bucket/run/step-1'
    """
    scheme, mark, rest = root.rpartition("://")
    return scheme + mark + posixpath.normpath(posixpath.join(rest or "/", path))
