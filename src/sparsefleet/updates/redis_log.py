"""Updates in Redis.

Layout, below the prefix of the model and the version of its export (docs/row_stores.md):
`updates` is a hash from the name of an update to its number of pieces, `update:<name>:<i>` a
piece, `publisher` the token of whoever publishes, which expires unless it is renewed.
"""

from __future__ import annotations

import secrets

from sparsefleet.errors import NotFoundError, PublishError
from sparsefleet.updates.redis_server import RedisServer
from sparsefleet.updates.update_name import UpdateName

__all__ = ["RedisLog"]

_PIECE_BYTES = 16 << 20  # a value may have 512 MiB, but a large one keeps others waiting
_LEASE_S = 30


class RedisLog:
    """An `UpdateLog` in Redis. An update is listed in one transaction, after all its pieces."""

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
            raise NotFoundError(f"update {name.sequence} is gone from {self.where}")
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
                    f"another trainer publishes to {self.where}: end it; if it was killed, it is "
                    f"forgotten in {left_s:.0f} s"
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
                client.hdel(self._list, str(name))  # first, so that nobody begins to read it
                if count:
                    client.unlink(*(self._piece(name, at) for at in range(count)))

    def close(self) -> None:
        token, self._token = self._token, None
        try:
            if token is not None:
                with self._server.asking("publishing could not be ended"):
                    if self._server.client.get(self._publisher) == token.encode():
                        self._server.client.delete(self._publisher)
        finally:
            self._server.close()

    def _piece(self, name: UpdateName, at: int) -> str:
        return self._server.key(self._version, "update", str(name), str(at))

    def _list_it(self, name: UpdateName, num_pieces: int) -> None:
        """In one transaction with the look at who publishes."""
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
        return PublishError(f"another trainer has begun to publish to {self.where}: this one stops")

    def _renew(self) -> None:
        """The lease goes on; one that ran out is taken again if nobody else has it."""
        token = self._token
        if token is None:
            raise PublishError(f"hold() comes before publishing to {self.where}")
        client = self._server.client
        found = client.get(self._publisher)
        if found is None and client.set(self._publisher, token, nx=True, ex=_LEASE_S):
            return
        if found != token.encode():
            raise self._taken_over()
        client.expire(self._publisher, _LEASE_S)

    def _remove_unlisted(self) -> None:
        """Pieces that a publisher which was killed has left."""
        client = self._server.client
        listed = set(client.hkeys(self._list))
        start = self._server.key(self._version, "update", "").encode()
        pattern = self._server.key(self._version, "update", "*")
        for key in client.scan_iter(match=pattern, count=1000):
            if key[len(start) :].rpartition(b":")[0] not in listed:
                client.unlink(key)
