"""What a server process is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.field_checks import require, require_int, require_positive

__all__ = ["ServerConfig", "TransportName"]

TransportName = Literal["auto", "tls", "plain"]

_MAX_FRAME_BYTES = 2**32 - 1  # a frame's length is 32 bits wide


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """One server of a fleet.

    >>> ServerConfig(endpoint="127.0.0.1:0").transport
    'auto'
    """

    endpoint: str = "127.0.0.1:9100"
    """HOST:PORT to listen on. Port 0 takes a free one. Others reach it only if HOST is not
    loopback, and then there must be a job key (docs/running_servers.md)."""

    index: int = 0
    """This server's place among `num_servers`, from 0: its place in the clients' list."""

    num_servers: int = 1
    """Servers in the fleet. Clients that count otherwise are refused."""

    transport: TransportName = "auto"
    """TLS 1.3 with the job key over the network, shared memory to clients of this host and user;
    "tls": TLS to all; "plain": the key is proven, nothing is encrypted."""

    num_threads: int = 0
    """Threads that carry out requests; 0 is one a core, at most 8."""

    max_frame_bytes: int = 256 << 20
    """Larger requests and replies are refused. Costs memory only while one is under way."""

    peer_timeout_s: float = 10.0
    """A client silent for this long counts as lost. Larger: slower to notice, more patient."""

    handshake_timeout_s: float = 10.0
    """A new connection must prove the job key within this."""

    frame_timeout_s: float = 30.0
    """A message once begun may pause for no longer than this."""

    drain_timeout_s: float = 30.0
    """At the end, requests under way get this long."""

    save_root: str = ""
    """Clients' save and load commands stay below this directory; empty allows any."""

    notes: Mapping[str, bytes] = field(default_factory=dict)
    """Notes that clients find from the start on; the first server's are the ones they read."""

    def __post_init__(self) -> None:
        parse_endpoint(self.endpoint)
        require_int(self, "num_servers", 1, 2**16)
        require_int(self, "index", 0, self.num_servers - 1)
        wanted = " or ".join(repr(name) for name in get_args(TransportName))
        require(self.transport in get_args(TransportName), self, "transport", wanted)
        require_int(self, "num_threads", 0, 1024)
        require_int(self, "max_frame_bytes", 1 << 16, _MAX_FRAME_BYTES)
        for name in (
            "peer_timeout_s",
            "handshake_timeout_s",
            "frame_timeout_s",
            "drain_timeout_s",
        ):
            require_positive(self, name)
