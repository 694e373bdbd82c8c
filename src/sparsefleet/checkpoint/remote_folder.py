"""A folder on an fsspec file system, such as an object store. A file appears once it is closed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import IO, Any

import fsspec

from sparsefleet.checkpoint.folder import (
    OBJECT_STORES,
    Confinement,
    Folder,
    FoundFile,
    OutputFile,
    reported,
)
from sparsefleet.errors import ConfigError

__all__ = ["RemoteFolder"]

# Drivers raise their client libraries' errors; only the message says what happened.
_ANY = (Exception,)


class _RemoteFile(OutputFile):
    _kinds = _ANY

    def __init__(self, location: str, file: Any) -> None:
        super().__init__(location)
        self._file = file

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)

    def close(self) -> None:
        with reported("write", self.location, _ANY):
            self._file.close()

    def discard(self) -> None:
        with contextlib.suppress(Exception):
            self._file.discard()
        self._file.closed = True  # otherwise garbage collection would close the file and upload it


class RemoteFolder(Folder):
    """A folder at an fsspec URL."""

    _kinds = _ANY

    def __init__(
        self, root: str, storage_options: Mapping[str, Any], within: Confinement | None = None
    ) -> None:
        super().__init__(root.rstrip("/"), storage_options, within)
        try:
            self._fs, self._path = fsspec.core.url_to_fs(self.root, **self._options)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"cannot open {root}: {error}") from error

    def _full(self, path: str) -> str:
        return f"{self._path.rstrip('/')}/{path}"

    def _make_folder(self, full: str) -> None:
        """Create the folder that contains the file."""
        # In an object store, creating a folder with a misspelled name would create a bucket.
        if self.root.partition("://")[0] not in OBJECT_STORES:
            self._fs.makedirs(full.rpartition("/")[0], exist_ok=True)

    def create(self, path: str) -> OutputFile:
        location = self.locate(path)
        full = self._full(path)
        with reported("write", location, _ANY):
            self._make_folder(full)
            return _RemoteFile(location, self._fs.open(full, "wb"))

    def replace(self, path: str, data: bytes, pending: str) -> None:  # noqa: ARG002
        with reported("write", self.locate(path), _ANY):
            self._make_folder(self._full(path))
            self._fs.pipe_file(self._full(path), data)

    def open(self, path: str) -> IO[bytes]:
        with reported("read", self.locate(path), _ANY):
            opened: IO[bytes] = self._fs.open(self._full(path), "rb")
            return opened

    def _read(self, path: str, limit: int | None) -> bytes:
        with reported("read", self.locate(path), _ANY):
            data: bytes = self._fs.cat_file(self._full(path), end=limit)
            return data

    def _info(self, path: str) -> dict[str, Any] | None:
        self._fs.invalidate_cache()
        with reported("read", self.locate(path), _ANY):
            try:
                found: dict[str, Any] = self._fs.info(self._full(path))
            except FileNotFoundError:
                return None
        return found if found.get("type") == "file" else None

    def size(self, path: str) -> int | None:
        found = self._info(path)
        return int(found["size"]) if found else None

    def modified(self, path: str) -> float | None:
        try:
            return float(self._fs.modified(self._full(path)).timestamp())
        except (FileNotFoundError, NotImplementedError):
            return None

    def files(self) -> list[FoundFile]:
        self._fs.invalidate_cache()
        with reported("list", self.root, _ANY):
            try:
                found = self._fs.find(self._path, detail=True)
            except FileNotFoundError:
                return []
        begin = len(self._path.rstrip("/")) + 1
        return sorted(FoundFile(path[begin:], int(info["size"])) for path, info in found.items())

    def folders(self) -> list[str]:
        self._fs.invalidate_cache()
        with reported("list", self.root, _ANY):
            try:
                found = self._fs.ls(self._path, detail=True)
            except FileNotFoundError:
                return []
        names = (entry["name"].rstrip("/") for entry in found if entry["type"] == "directory")
        return sorted(name.rpartition("/")[2] for name in names)

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            with reported("remove", self.locate(path), _ANY):
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm_file(self._full(path))

    def remove_empty(self) -> None:
        """Do nothing, since object stores have no empty folders."""
