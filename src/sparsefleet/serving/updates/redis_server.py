"""A Redis connection that reports failures as named errors."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from sparsefleet.errors import ConfigError, StoreUnavailableError
from sparsefleet.field_checks import is_number

__all__ = ["RedisServer", "TimedSocket", "is_redis", "with_timed_socket"]


class TimedSocket:
    """A socket whose timeout runs from the last send to the end of the reply.

    The timeout of a plain socket restarts with each chunk, so it never expires if a server sends a
    byte now and then.
    """

    def __init__(self, sock: Any, timeout_s: float) -> None:
        self._sock = sock
        self._timeout_s = timeout_s
        self._end = time.monotonic() + timeout_s

    def sendall(self, data: Any) -> None:
        self._end = time.monotonic() + self._timeout_s
        self._sock.sendall(data)

    def recv(self, *arguments: Any) -> Any:
        return self._within_deadline(self._sock.recv, arguments)

    def recv_into(self, *arguments: Any) -> Any:
        return self._within_deadline(self._sock.recv_into, arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def _within_deadline(self, receive: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        allowed = self._sock.gettimeout()
        if not allowed:  # only polls for data
            return receive(*arguments)
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"Redis did not send a complete reply within {self._timeout_s:g} s")
        self._sock.settimeout(min(allowed, left))
        try:
            return receive(*arguments)
        finally:
            self._sock.settimeout(allowed)


def with_timed_socket(connection: Any) -> Any:
    """Return a subclass of the Redis connection class `connection` that uses timed sockets."""

    def connect(self: Any) -> Any:
        return TimedSocket(connection._connect(self), self.socket_timeout)

    return type(connection.__name__, (connection,), {"_connect": connect})


_SCHEMES = ("redis", "rediss", "unix")
_MODEL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def is_redis(target: object) -> bool:
    """Return whether the target is a Redis URL and not a directory.

    >>> is_redis("redis://127.0.0.1:6379/0"), is_redis("updates")
    (True, False)
    """
    return isinstance(target, str) and target.split("://")[0] in _SCHEMES and "://" in target


class RedisServer:
    """A connection to the Redis server that holds a model's rows. Reconnects; thread-safe.

    url: `redis://[user:password@]host:port/database?model=NAME`, `rediss://...` (TLS) or
        `unix://path?...`. Models with different names can share a database.
    timeout_s: timeout for each complete reply, and for connecting.

    >>> RedisServer("redis://:secret@127.0.0.1:6379/2?model=ads").where
    'redis://127.0.0.1:6379/2 (model ads)'
    """

    def __init__(self, url: str, *, timeout_s: float = 5.0, max_connections: int = 64) -> None:
        if not is_redis(url):
            raise ConfigError(
                f"a Redis address must be redis://host:port/database?model=NAME, got {url!r}"
            )
        if not (is_number(timeout_s) and timeout_s > 0):
            raise ConfigError(f"timeout_s must be a finite number > 0, got {timeout_s!r}")
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        self.model = options.pop("model", "model")
        if not _MODEL_NAME.fullmatch(self.model):
            raise ConfigError(
                "a model name in Redis must consist of letters, digits, '.', '_' and '-', got "
                f"{self.model!r}"
            )
        self.timeout_s = timeout_s
        host = parts.netloc.rpartition("@")[2]  # the part before "@" is a secret
        self.where = f"{parts.scheme}://{host}{parts.path} (model {self.model})"
        self.prefix = f"sparsefleet:{{{self.model}}}:"
        """Prefix of all keys; in a cluster, the braces keep all keys on one node."""
        address = urlunsplit(parts._replace(query=urlencode(options)))
        self.client: Any = _connect(address, timeout_s, max_connections)

    def key(self, *parts: str) -> str:
        """Return a Redis key for this model, made of its prefix and `parts`."""
        return self.prefix + ":".join(parts)

    @contextmanager
    def asking(self, what: str) -> Iterator[None]:
        """Turn failures in the block into StoreUnavailableError, which says what failed and why."""
        import redis

        try:
            yield
        except redis.exceptions.AuthenticationError as error:
            raise StoreUnavailableError(
                f"{what}: Redis at {self.where} rejects the user or password ({error}); put them "
                "in the address, as in redis://user:password@host"
            ) from error
        except redis.exceptions.BusyLoadingError as error:
            raise StoreUnavailableError(
                f"{what}: Redis at {self.where} is still loading its data from disk"
            ) from error
        except redis.exceptions.TimeoutError as error:
            raise StoreUnavailableError(
                f"{what}: Redis at {self.where} did not answer within {self.timeout_s:g} s; "
                "check whether Redis is overloaded or stopped"
            ) from error
        except redis.exceptions.ConnectionError as error:
            raise StoreUnavailableError(
                f"{what}: Redis at {self.where} cannot be reached ({error}); check that Redis is "
                "running"
            ) from error
        except redis.exceptions.OutOfMemoryError as error:
            raise StoreUnavailableError(
                f"{what}: Redis at {self.where} is full; raise its maxmemory, or delete old "
                "versions with `sparsefleet push-rows --delete`"
            ) from error
        except redis.exceptions.RedisError as error:
            raise StoreUnavailableError(
                f"{what}: Redis at {self.where} answered: {error}"
            ) from error

    def close(self) -> None:
        """Close the connections."""
        self.client.close()
        self.client.connection_pool.disconnect()


def _connect(url: str, timeout_s: float, max_connections: int) -> Any:
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise ConfigError(
            f"Redis requires the redis package ({error}); run `pip install sparsefleet[redis]`"
        ) from error
    try:
        pool = redis.BlockingConnectionPool.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            timeout=timeout_s,
            max_connections=max_connections,
            retry=Retry(NoBackoff(), 0),  # we enforce our own deadlines
            protocol=2,
        )
        pool.connection_class = with_timed_socket(pool.connection_class)
        return redis.Redis(connection_pool=pool)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the Redis address cannot be used: {error}") from error
