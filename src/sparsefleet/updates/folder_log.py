"""Updates as files of a directory."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path

from sparsefleet.errors import NotFoundError, PublishError, StoreUnavailableError
from sparsefleet.updates.update_name import UpdateName

__all__ = ["FolderLog"]

_LOCK = ".publisher"
_UNFINISHED = ".tmp"


class FolderLog:
    """An `UpdateLog` in `<directory>/<version>`, which publisher and services share.

    A file is renamed when it is whole. What a publisher that was killed has left goes when the
    next one begins.

    >>> import tempfile
    >>> log = FolderLog(tempfile.mkdtemp(), "0123456789abcdef")
    >>> name = UpdateName("whole", 1, "0" * 16, "f" * 16)
    >>> log.hold()
    >>> log.append(name, b"...")
    >>> log.names() == [name], log.read(name)
    (True, b'...')
    >>> log.close()
    """

    def __init__(self, directory: str | os.PathLike[str], version: str) -> None:
        self._folder = Path(directory).absolute() / version
        self._lock: int | None = None

    @property
    def where(self) -> str:
        return str(self._folder)

    def names(self) -> list[UpdateName]:
        try:
            found = map(UpdateName.parse, os.listdir(self._folder))
        except FileNotFoundError:
            return []  # nothing was published yet
        except OSError as error:
            raise StoreUnavailableError(f"updates cannot be read: {error}") from error
        return [name for name in found if name is not None]

    def read(self, name: UpdateName) -> bytes:
        try:
            return (self._folder / str(name)).read_bytes()
        except FileNotFoundError as error:
            raise NotFoundError(f"{self._folder / str(name)} is gone") from error
        except OSError as error:
            raise StoreUnavailableError(f"an update cannot be read: {error}") from error

    def hold(self) -> None:
        if self._lock is not None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise PublishError(f"updates cannot be written to {self._folder}: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise PublishError(
                f"another trainer publishes to {self._folder}: end it, or publish to another "
                "directory"
            ) from error
        except OSError:
            pass  # a file system without locks: whoever publishes there twice is told by the names
        self._lock = lock
        for left in self._folder.glob(f".*{_UNFINISHED}"):
            left.unlink(missing_ok=True)

    def append(self, name: UpdateName, raw: bytes) -> None:
        self._require_held()
        beside = self._folder / f".{name}-{secrets.token_hex(4)}{_UNFINISHED}"
        try:
            with beside.open("wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self._folder / str(name))
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise PublishError(f"an update cannot be written to {self._folder}: {error}") from error

    def remove(self, names: list[UpdateName]) -> None:
        self._require_held()
        for name in names:
            (self._folder / str(name)).unlink(missing_ok=True)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _require_held(self) -> None:
        if self._lock is None:
            raise PublishError(f"hold() comes before publishing to {self._folder}")
