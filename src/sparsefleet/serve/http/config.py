"""Settings of the service."""

from __future__ import annotations

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
from sparsefleet.serve.predictor import Engine

__all__ = ["ServeConfig"]

_MAX_BYTES = 1 << 30
_MIN_TOKEN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig:
    """What to serve, to whom, and how much at a time.

    >>> ServeConfig(models=Path("model"), timeout_s=0)
    Traceback (most recent call last):
    sparsefleet.errors.ConfigError: ServeConfig.timeout_s must be a finite number > 0, got 0
    """

    models: Path
    """The directory of an export, or a folder of such directories, one a version."""

    rows: str = field(default="", repr=False)
    """Where the rows are: "" for the files of the export; else as `open_rows` takes it."""

    updates: str = field(default="", repr=False)
    """The directory or Redis that a trainer publishes to; "": none, or the Redis of the rows."""

    cache_bytes: int = 256 << 20
    """Of rows from Redis that are kept here."""

    store_timeout_s: float = 1.0
    """For an answer of Redis or of servers that have the rows."""

    engine: Engine = "auto"
    """What computes; see `Predictor`."""

    host: str = "127.0.0.1"
    """Address to listen on. The default can be reached from this machine only."""

    port: int = 8000
    """0 takes a free one."""

    token: str | None = field(default=None, repr=False)
    """If there is one, everything under /v1 and /metrics asks for it as a bearer token."""

    workers: int = 2
    """Threads that predict, each a batch at a time."""

    threads: int = 1
    """Threads of one prediction within the engine."""

    max_requests: int = 256
    """Requests under way, waiting ones included; one more is answered with 429."""

    max_request_bytes: int = 4 << 20
    """Of a request's body; a larger one is answered with 413 and not read."""

    max_bytes_under_way: int = 256 << 20
    """Of the bodies of all requests under way; more are answered with 429."""

    max_examples: int = 10_000
    """Of one request."""

    max_batch: int = 1024
    """Examples that are predicted at once, if they come from several requests; 1: each request
    by itself."""

    batch_wait_s: float = 0.0
    """How long a batch waits for more examples. 0 takes those that have come while the one
    before was computed, which costs no time."""

    timeout_s: float = 5.0
    """From a request's body to its answer; then 504."""

    read_timeout_s: float = 10.0
    """Within which a request's head must be sent, else the connection is closed; and then its
    body, else 408."""

    drain_delay_s: float = 0.0
    """After SIGTERM, how long requests are still accepted while /readyz says no."""

    drain_timeout_s: float = 15.0
    """After that, how long requests under way may take to end."""

    follow: bool = True
    """Whether to look for a new version once a second, and switch to it."""

    def __post_init__(self) -> None:
        require(self.engine in get_args(Engine), self, "engine", "'torch', 'onnx' or 'auto'")
        require_int(self, "port", 0, 65535)
        for name in ("workers", "threads"):
            require_int(self, name, 1, 256)
        for name in ("max_requests", "max_examples", "max_batch"):
            require_int(self, name, 1, 10_000_000)
        require_int(self, "max_request_bytes", 1, _MAX_BYTES)
        require_int(self, "max_bytes_under_way", self.max_request_bytes, 1 << 40)
        for name in ("batch_wait_s", "drain_delay_s"):
            require_not_negative(self, name)
        require_int(self, "cache_bytes", 0, 1 << 50)
        for name in ("timeout_s", "read_timeout_s", "drain_timeout_s", "store_timeout_s"):
            require_positive(self, name)
        require_bool(self, "follow")
        if self.token is not None:
            holds = len(self.token) >= _MIN_TOKEN and self.token.isascii()
            holds = holds and self.token.isprintable() and " " not in self.token
            # The message must not show it.
            if not holds:
                from sparsefleet.errors import ConfigError

                raise ConfigError(
                    f"ServeConfig.token must be {_MIN_TOKEN} or more printable ASCII letters "
                    f"without spaces, got {len(self.token)} characters"
                )
