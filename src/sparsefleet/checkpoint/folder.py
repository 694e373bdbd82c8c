"""Folders of checkpoint files, local or on an fsspec file system, optionally confined to a root."""

from __future__ import annotations

import abc
import contextlib
import errno
import io
import os
import posixpath
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any, NamedTuple
from urllib.parse import unquote

from sparsefleet.checkpoint.names import TABLE_FOLDERS
from sparsefleet.errors import (
    CheckpointError,
    CheckpointIoError,
    CheckpointMissingError,
    ConfigError,
    CorruptFileError,
)

__all__ = [
    "Confinement",
    "Folder",
    "FoundFile",
    "LocalFolder",
    "OutputFile",
    "checksum_text",
    "open_folder",
    "reported",
]

READ_BYTES = 4 << 20
_LOCAL_SCHEMES = ("file", "local")
OBJECT_STORES = ("abfs", "abfss", "az", "gcs", "gs", "memory", "oss", "s3", "s3a")
"""fsspec schemes of stores that have no folders."""


class FoundFile(NamedTuple):
    """A file in a folder."""

    path: str
    """Path relative to the folder, with slashes."""
    num_bytes: int


@contextmanager
def reported(
    action: str, path: str, kinds: tuple[type[Exception], ...] = (OSError,)
) -> Iterator[None]:
    """Convert file system errors in the block to this package's errors, which name the file."""
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
    """Return a checksum as written in manifests, which use the same CRC-32 as gzip and PNG.

    >>> checksum_text(zlib.crc32(b"123456789"))
    'crc32:cbf43926'
    """
    return f"crc32:{crc:08x}"


class OutputFile(abc.ABC):
    """A new file that is complete and on disk only after `close()` has returned."""

    _kinds: tuple[type[Exception], ...] = (OSError,)
    """The exception classes that operations on the file raise."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.num_bytes = 0
        self._crc = 0

    @property
    def checksum(self) -> str:
        """Return the checksum of the data written so far."""
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
        """Delete the file. Never raises."""


class Folder(abc.ABC):
    """A folder whose files are addressed by their path relative to `root`. Thread-safe."""

    _kinds: tuple[type[Exception], ...] = (OSError,)
    """The exception classes that operations on the folder raise."""

    def __init__(
        self,
        root: str,
        storage_options: Mapping[str, Any] | None = None,
        within: Confinement | None = None,
    ) -> None:
        self.root = root
        """The path or URL of the folder, as users write it."""
        self._options = dict(storage_options or {})
        self._within = within
        if within is not None:
            within.check(root)

    @property
    def storage_options(self) -> dict[str, Any]:
        """The options that were passed to fsspec to open the folder."""
        return dict(self._options)

    def locate(self, path: str) -> str:
        """Return the path or URL of a file, as users write it."""
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    def sub(self, path: str) -> Folder:
        """Return another folder, given as an absolute path or a path relative to this folder.

        A relative path may contain `..`. Since manifests may be untrusted, raises ConfigError for a
        URL that leads to a different kind of service, unless that service is a disk or an object
        store.
        """
        if "://" in path:
            scheme = path.rpartition("://")[0]  # every scheme in a chain, such as "filecache::s3"
            known = {*OBJECT_STORES, *_LOCAL_SCHEMES, self.root.rpartition("://")[0]}
            if scheme not in known:
                raise ConfigError(
                    f"{path:.500}: expected a path, a local file URL, or the URL of an object store"
                )
        else:
            path = joined(self.root, path)
        return open_folder(path, self._options, within=self._within)

    @abc.abstractmethod
    def create(self, path: str) -> OutputFile:
        """Create a file, and its parent folders if needed, and open it for writing."""

    @abc.abstractmethod
    def replace(self, path: str, data: bytes, pending: str) -> None:
        """Replace the file atomically. The new contents are on disk when this method returns.

        pending: the path of the temporary file.
        """

    @abc.abstractmethod
    def open(self, path: str) -> IO[bytes]:
        """Open the file for reading."""

    @abc.abstractmethod
    def size(self, path: str) -> int | None:
        """Return the size of the file in bytes, or None if it does not exist."""

    @abc.abstractmethod
    def modified(self, path: str) -> float | None:
        """Return the time of the last write in seconds since 1970, or None if unknown."""

    @abc.abstractmethod
    def files(self) -> list[FoundFile]:
        """Return all files under the folder, or an empty list if the folder does not exist."""

    @abc.abstractmethod
    def folders(self) -> list[str]:
        """Return the names of direct subfolders."""

    @abc.abstractmethod
    def remove(self, paths: Iterable[str]) -> None:
        """Remove files and any folders left empty. Missing files are ignored."""

    @abc.abstractmethod
    def remove_empty(self) -> None:
        """Remove table folders without files, then the folder itself if it is empty."""

    def reading(self, path: str) -> AbstractContextManager[None]:
        """Convert errors raised while reading a file into errors that name the file."""
        return reported("read", self.locate(path), self._kinds)

    def read(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Return the contents of the file. Raises CorruptFileError if it exceeds `max_bytes`."""
        found = self._read(path, None if max_bytes is None else max_bytes + 1)
        if max_bytes is not None and len(found) > max_bytes:
            raise CorruptFileError(
                f"{self.locate(path)}: expected at most {max_bytes:,} bytes, found more"
            )
        return found

    def _read(self, path: str, limit: int | None) -> bytes:
        """Return the first `limit` bytes of the file, or the whole file if `limit` is None."""
        with self.reading(path), self.open(path) as file:
            if limit is None:
                return file.read()
            found = bytearray()  # in blocks: file.read(limit) allocates `limit` bytes at once
            while block := file.read(min(READ_BYTES, limit - len(found))):
                found += block
            return bytes(found)

    def checksum(self, path: str) -> tuple[int, str]:
        """Read the file once; return its size in bytes and its checksum."""
        crc = size = 0
        with self.reading(path), self.open(path) as file:
            while block := file.read(READ_BYTES):
                crc = zlib.crc32(block, crc)
                size += len(block)
        return size, checksum_text(crc)


def open_folder(
    path: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    within: Confinement | None = None,
) -> Folder:
    """Return the folder at a path or URL. The folder need not exist.

    within: the root that the folder, its files and all folders reached from it must lie in; paths
        outside raise ConfigError.

    >>> open_folder("memory://models/ads").locate("manifest.json")
    'memory://models/ads/manifest.json'
    """
    from sparsefleet.checkpoint.remote_folder import RemoteFolder

    path = str(path)
    local = _local_path(path)
    if local is None:
        return RemoteFolder(path, storage_options or {}, within)
    return LocalFolder(local, storage_options, within)


def joined(root: str, path: str) -> str:
    """Return `root/path` with `..` resolved, for paths and URLs.

    >>> joined("s3://bucket/run/step-2", "../step-1")
    's3://bucket/run/step-1'
    """
    scheme, mark, rest = root.rpartition("://")
    return scheme + mark + posixpath.normpath(posixpath.join(rest or "/", path))


class Confinement:
    """A directory or fsspec URL that all paths must lie under.

    On local disks, `..`, `~` and symbolic links are resolved before paths are compared, and files
    are checked when they are opened, so links inside a checkpoint cannot lead out either. URLs
    with `..` are rejected; links of a remote file system are not detected.

    reason: appended to the error, to say who set the root.

    >>> inside = Confinement("s3://bucket/run")
    >>> inside.check("s3://bucket/run/step-1")
    >>> inside.check("s3://bucket/run/../other")
    Traceback (most recent call last):
    sparsefleet.errors.ConfigError: s3://bucket/run/../other is not below s3://bucket/run
    """

    def __init__(self, root: str, reason: str = "") -> None:
        if not root:
            raise ConfigError("Confinement.root must be a directory or URL, got ''")
        local = _local_path(root)
        self.root = root if local is None else _real(local)
        self._reason = f"; {reason}" if reason else ""

    def check(self, path: str) -> None:
        """Raise ConfigError unless `path`, a path or URL as in `open_folder`, lies in the root."""
        local = _local_path(path)
        if "\0" in path or (local is None) != ("://" in self.root):
            inside = False
        elif local is None:
            inside = _is_url_below(path, self.root)
        else:
            inside = os.path.commonpath([_real(local), self.root]) == self.root
        if not inside:
            raise ConfigError(f"{path:.500} is not below {self.root}{self._reason}")


def _local_path(path: str) -> str | None:
    """Return a local path without its scheme, or None for other URLs."""
    scheme, mark, rest = path.partition("://")
    if mark and scheme in _LOCAL_SCHEMES:
        return rest
    return None if mark else path


def _real(path: str) -> str:
    """Resolve a path and its links in the same way as `LocalFolder`."""
    return os.path.realpath(os.path.abspath(os.path.expanduser(path)))


def _is_url_below(url: str, root: str) -> bool:
    scheme, _, rest = url.partition("://")
    top_scheme, _, top = root.partition("://")
    top = top.rstrip("/")
    # fsspec opens "a://x::b://y" as one file system layered on another; HTTP servers decode %2e.
    if scheme != top_scheme or "::" in rest or "\\" in rest or ".." in unquote(rest).split("/"):
        return False
    return not top or rest.rstrip("/") == top or rest.startswith(f"{top}/")


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_TRIES = 100


def sync_to_disk(path: str | os.PathLike[str]) -> None:
    """Write a file, or the entries of a folder, to the disk."""
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
    sync_to_disk(above)


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
            sync_to_disk(os.path.dirname(self.location))

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
                sync_to_disk(self.root)
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
