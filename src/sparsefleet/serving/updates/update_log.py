"""Logs that carry updates from a trainer to services."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path
from typing import Protocol

from sparsefleet.errors import NotFoundError, PublishError, StoreUnavailableError
from sparsefleet.serving.updates.redis_server import RedisServer, is_redis
from sparsefleet.serving.updates.update import UpdateName

__all__ = ["FolderLog", "RedisLog", "UpdateLog", "open_log"]

_LOCK = ".publisher"
_UNFINISHED = ".tmp"


class FolderLog:
    """An `UpdateLog` in `<directory>/<version>`, shared by publisher and services.

    A file gets its final name once it is complete. Files left by a killed publisher are removed
    when the next publisher starts.

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
            return []  # nothing has been published yet
        except OSError as error:
            raise StoreUnavailableError(f"updates cannot be read: {error}") from error
        return [name for name in found if name is not None]

    def read(self, name: UpdateName) -> bytes:
        try:
            return (self._folder / str(name)).read_bytes()
        except FileNotFoundError as error:
            raise NotFoundError(f"{self._folder / str(name)} has been removed") from error
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
                f"another trainer is publishing to {self._folder}; stop it, or publish to a "
                "different directory"
            ) from error
        except OSError:
            pass  # no locks on this file system, but the file names reveal a second publisher
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
            raise PublishError(f"call hold() before publishing to {self._folder}")


class UpdateLog(Protocol):
    """The updates of one export, with one publisher and any number of readers. Thread-safe.

    Updates appear atomically.
    """

    @property
    def where(self) -> str:
        """Return the location of the log, for messages."""

    def names(self) -> list[UpdateName]:
        """Return the available updates, unsorted.

        Raises StoreUnavailableError if the log is unreachable.
        """

    def read(self, name: UpdateName) -> bytes:
        """Return the bytes of an update. Raises NotFoundError if the update was removed."""

    def hold(self) -> None:
        """Become the only publisher. Raises PublishError if there is another publisher."""

    def append(self, name: UpdateName, raw: bytes) -> None:
        """Add an update. Raises PublishError if another publisher has taken over."""

    def remove(self, names: list[UpdateName]) -> None:
        """Remove old updates. Raises PublishError if another publisher has taken over."""

    def close(self) -> None:
        """Release the log to other publishers and free all resources."""


def open_log(target: str | os.PathLike[str], version: str) -> UpdateLog:
    """Open the log of updates to the export `version` in a directory or in Redis."""
    from sparsefleet.serving.updates.update_log import RedisLog

    if is_redis(target):
        return RedisLog(RedisServer(str(target)), version)
    return FolderLog(target, version)


_PIECE_BYTES = 16 << 20  # a value may have up to 512 MiB, but large values block other clients
_LEASE_S = 30


class RedisLog:
    """An `UpdateLog` in Redis. An update is listed only after all its chunks are stored."""

    def __init__(self, server: RedisServer, version: str) -> None:
        self._server = server
        self._version = version
        self._token: str | None = None
        self._list = server.key(version, "updates")
        self._publisher = server.key(version, "publisher")

    @property
    def where(self) -> str:
        return f"{self._server.where}, version {self._version}"

    def names(self) -> list[UpdateName]:
        with self._server.asking("updates cannot be listed"):
            found = self._server.client.hkeys(self._list)
        parsed = [UpdateName.parse(raw.decode("utf-8", "replace")) for raw in found]
        return [name for name in parsed if name is not None]

    def read(self, name: UpdateName) -> bytes:
        client = self._server.client
        with self._server.asking(f"update {name.sequence} cannot be read"):
            count = client.hget(self._list, str(name))
            pieces = [client.get(self._piece(name, at)) for at in range(int(count or 0))]
        if count is None or any(piece is None for piece in pieces):
            raise NotFoundError(f"update {name.sequence} has been removed from {self.where}")
        return b"".join(pieces)

    def hold(self) -> None:
        if self._token is not None:
            return
        token = secrets.token_hex(8)
        with self._server.asking("publishing cannot begin"):
            client = self._server.client
            if not client.set(self._publisher, token, nx=True, ex=_LEASE_S):
                left_s = max(0, client.pttl(self._publisher)) / 1000
                raise PublishError(
                    f"another trainer publishes to {self.where}; stop it (if it was killed, its "
                    f"claim expires in {left_s:.0f} s)"
                )
            self._token = token
            self._remove_unlisted()

    def append(self, name: UpdateName, raw: bytes) -> None:
        pieces = [raw[at : at + _PIECE_BYTES] for at in range(0, len(raw), _PIECE_BYTES)]
        with self._server.asking(f"update {name.sequence} cannot be published"):
            self._renew()
            for at, piece in enumerate(pieces):
                self._server.client.set(self._piece(name, at), piece)
                self._renew()
            self._list_it(name, len(pieces))

    def remove(self, names: list[UpdateName]) -> None:
        client = self._server.client
        with self._server.asking("old updates cannot be removed"):
            self._renew()
            for name in names:
                count = int(client.hget(self._list, str(name)) or 0)
                client.hdel(self._list, str(name))  # first, so that no reader starts to read it
                if count:
                    client.unlink(*(self._piece(name, at) for at in range(count)))

    def close(self) -> None:
        token, self._token = self._token, None
        try:
            if token is not None:
                with self._server.asking("publishing could not be stopped"):
                    if self._server.client.get(self._publisher) == token.encode():
                        self._server.client.delete(self._publisher)
        finally:
            self._server.close()

    def _piece(self, name: UpdateName, at: int) -> str:
        return self._server.key(self._version, "update", str(name), str(at))

    def _list_it(self, name: UpdateName, num_pieces: int) -> None:
        """In one transaction, list the update and check that this is still the only publisher."""
        from redis.exceptions import WatchError

        try:
            with self._server.client.pipeline() as steps:
                steps.watch(self._publisher)
                if steps.get(self._publisher) != (self._token or "").encode():
                    raise self._taken_over()
                steps.multi()
                steps.hset(self._list, str(name), str(num_pieces))
                steps.expire(self._publisher, _LEASE_S)
                steps.execute()
        except WatchError as error:
            raise self._taken_over() from error

    def _taken_over(self) -> PublishError:
        self._token = None
        return PublishError(
            f"another trainer has begun to publish to {self.where}, so this trainer stops"
        )

    def _renew(self) -> None:
        """Renew the lease. If it has expired and no other publisher holds it, acquire it again."""
        token = self._token
        if token is None:
            raise PublishError(f"call hold() before publishing to {self.where}")
        client = self._server.client
        found = client.get(self._publisher)
        if found is None and client.set(self._publisher, token, nx=True, ex=_LEASE_S):
            return
        if found != token.encode():
            raise self._taken_over()
        client.expire(self._publisher, _LEASE_S)

    def _remove_unlisted(self) -> None:
        """Remove chunks of updates left by a killed publisher."""
        client = self._server.client
        listed = set(client.hkeys(self._list))
        start = self._server.key(self._version, "update", "").encode()
        pattern = self._server.key(self._version, "update", "*")
        for key in client.scan_iter(match=pattern, count=1000):
            if key[len(start) :].rpartition(b":")[0] not in listed:
                client.unlink(key)
