"""Settings of the service."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from sparsefleet.field_checks import (
    require,
    require_bool,
    require_int,
    require_not_negative,
    require_positive,
)
from sparsefleet.serving.predictor import Engine

__all__ = ["ServeConfig"]

_MAX_BYTES = 1 << 30
_MIN_TOKEN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig:
    """The service's settings: the model, access and limits.

    >>> ServeConfig(models=Path("model"), timeout_s=0)
    Traceback (most recent call last):
    sparsefleet.errors.ConfigError: ServeConfig.timeout_s must be a finite number > 0, got 0
    """

    models: Path
    """The directory of an export, or a folder with one such directory per version."""

    rows: str = field(default="", repr=False)
    """Where the rows are, in the notation of `open_rows`; "" means the export's own files."""

    updates: str = field(default="", repr=False)
    """The directory or Redis URL that a trainer publishes updates to. "" means the Redis with the
    rows, if any.
    """

    cache_bytes: int = 256 << 20
    """Memory for caching rows from Redis."""

    store_timeout_s: float = 1.0
    """Timeout of a request to Redis or to the servers that hold the rows."""

    engine: Engine = "auto"
    """The engine that computes predictions; see `Predictor`."""

    host: str = "127.0.0.1"
    """Address to listen on. The default is reachable only from this machine."""

    port: int = 8000
    """Port to listen on; 0 picks a free port."""

    allowed_hosts: tuple[str, ...] = ()
    """Names allowed in the Host header of requests, besides IP addresses, localhost and `host`: a
    name, ".example.com" for a domain and its subdomains, or "*" for any host."""

    token: str | None = field(default=None, repr=False)
    """Bearer token that every path except /healthz requires. If None, no token is required."""

    open_readyz: bool = False
    """Whether /readyz answers requests without the token, with the status but neither version nor
    reason. For load balancers that cannot send a token.
"""

    max_connections: int = 1024
    """Maximum number of open connections. Beyond the limit, a new connection replaces the
    connection that has been idle longest. The limit is lowered if the process may not open that
    many files.
"""

    max_connections_per_address: int = 512
    """Maximum number of open connections per client address, or per /64 network for IPv6."""

    keep_alive_s: float = 75.0
    """How long a connection may stay idle between two requests. Should exceed the idle timeout of a
    proxy in front of the service, which is often 60 s.
"""

    workers: int = 2
    """Number of prediction threads; each computes one batch at a time."""

    threads: int = 1
    """Number of threads that the engine uses for one prediction."""

    max_requests: int = 256
    """Maximum number of requests in progress or waiting. Further requests get a 429."""

    max_request_bytes: int = 4 << 20
    """Maximum size of a request body. Larger bodies get a 413 without being read."""

    max_row_bytes: int = 64 << 20
    """Maximum size of the rows that a request looks up: ids x width x 4. Larger ones get a 413."""

    max_bytes_under_way: int = 512 << 20
    """Maximum estimated memory of all requests in progress: bodies, parsed inputs, rows and
    responses. A request that would exceed this limit gets a 429.
"""

    max_examples: int = 10_000
    """Maximum number of examples per request. Larger requests get a 413."""

    max_batch: int = 1024
    """Maximum number of examples in a batch that combines requests; 1 never combines requests."""

    batch_wait_s: float = 0.0
    """How long a batch waits for more examples. If 0, a batch contains only the examples that
    arrived while the previous batch was computed, so there is no added delay.
"""

    timeout_s: float = 5.0
    """Time limit from receiving a request to its response. Afterwards the request gets a 504."""

    read_timeout_s: float = 10.0
    """Time limit for receiving a request's headers, and again for its body. If the headers are
    late, the connection is closed; if the body is late, the request gets a 408.
"""

    drain_delay_s: float = 0.0
    """How long to keep accepting requests after SIGTERM, while /readyz reports not ready."""

    drain_timeout_s: float = 15.0
    """How long requests in progress may take to finish after `drain_delay_s`."""

    follow: bool = True
    """Whether to check for a new version every second and switch to it."""

    def __post_init__(self) -> None:
        require(self.engine in get_args(Engine), self, "engine", "'torch', 'onnx' or 'auto'")
        require_int(self, "port", 0, 65535)
        for name in ("workers", "threads"):
            require_int(self, name, 1, 256)
        for name in ("max_requests", "max_examples", "max_batch"):
            require_int(self, name, 1, 10_000_000)
        require_int(self, "max_connections", 1, 1_000_000)
        require_int(self, "max_connections_per_address", 1, 1_000_000)
        require_int(self, "max_request_bytes", 1, _MAX_BYTES)
        require_int(self, "max_row_bytes", 1, 1 << 40)
        require_int(self, "max_bytes_under_way", self.max_request_bytes, 1 << 40)
        for name in ("batch_wait_s", "drain_delay_s"):
            require_not_negative(self, name)
        require_int(self, "cache_bytes", 0, 1 << 50)
        for name in ("timeout_s", "read_timeout_s", "drain_timeout_s", "store_timeout_s"):
            require_positive(self, name)
        require_positive(self, "keep_alive_s")
        require_bool(self, "follow")
        require_bool(self, "open_readyz")
        given: object = self.allowed_hosts  # a plain string is a likely mistake
        holds = not isinstance(given, str) and all(map(_is_host, self.allowed_hosts))
        wanted = "host names without scheme or port, such as model.example.com"
        require(holds, self, "allowed_hosts", wanted)
        if self.token is not None:
            holds = len(self.token) >= _MIN_TOKEN and self.token.isascii()
            holds = holds and self.token.isprintable() and " " not in self.token
            # The message must not show the token.
            if not holds:
                from sparsefleet.errors import ConfigError

                raise ConfigError(
                    f"ServeConfig.token must be {_MIN_TOKEN} or more printable ASCII "
                    f"characters without spaces, got {len(self.token)} characters"
                )


def _is_host(name: object) -> bool:
    return isinstance(name, str) and (
        name == "*" or re.fullmatch(r"\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?", name) is not None
    )
