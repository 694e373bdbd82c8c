"""The machines of a collective job as Fluid's launcher knows them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from sparsefleet.endpoint import Endpoint, parse_endpoint
from sparsefleet.errors import ConfigError

__all__ = ["PaddleCluster", "cluster_from_cloud"]

_CLOUD_PORT = 6170


@dataclass(frozen=True, slots=True)
class PaddleCluster:
    """All machines, and the endpoint of every process, machine by machine."""

    node_ips: tuple[str, ...]
    node_rank: int
    """Which of them this machine is."""
    endpoints: tuple[str, ...]

    @property
    def first_port(self) -> int:
        return parse_endpoint(self.endpoints[0]).port

    @classmethod
    def from_first_port(
        cls, node_ips: tuple[str, ...], node_rank: int, port: int | None, num_local: int
    ) -> PaddleCluster:
        """Ports from `port` on at every machine; None: free ones of the only machine.

        >>> PaddleCluster.from_first_port(("10.0.0.7", "10.0.0.8"), 0, 6070, 2).endpoints
        ('10.0.0.7:6070', '10.0.0.7:6071', '10.0.0.8:6070', '10.0.0.8:6071')
        """
        if len(set(node_ips)) != len(node_ips):
            raise ConfigError(f"a machine occurs twice among {','.join(node_ips)}")
        ports = _free_ports(num_local) if port is None else range(port, port + num_local)
        places = tuple(str(Endpoint(ip, number)) for ip in node_ips for number in ports)
        return cls(node_ips, node_rank, places)


def cluster_from_cloud(
    environ: Mapping[str, str], started_port: int | None, num_local: int
) -> PaddleCluster:
    """From the variables that Paddle's scheduler sets. Raises ConfigError naming the wrong one."""
    node_ips = tuple(text.strip() for text in _set(environ, "PADDLE_TRAINERS").split(","))
    own = _set(environ, "POD_IP").strip()
    if own not in node_ips:
        raise ConfigError(f"POD_IP is {own!r}, which is none of PADDLE_TRAINERS {node_ips}")
    node_rank = _number(environ, "PADDLE_TRAINER_ID")
    if node_rank >= len(node_ips):
        raise ConfigError(
            f"PADDLE_TRAINER_ID must be less than {len(node_ips)}, the machines in "
            f"PADDLE_TRAINERS, got {node_rank}"
        )
    num_ports = _number(environ, "TRAINER_PORTS_NUM")
    given = environ.get("DISTRIBUTED_TRAINER_ENDPOINTS", "").strip()
    if given:
        return PaddleCluster(node_ips, node_rank, _given(given, node_ips, num_ports, num_local))
    port = started_port
    if environ.get("PADDLE_PORT", "").strip() and num_ports >= num_local:
        port = _number(environ, "PADDLE_PORT")
    return PaddleCluster.from_first_port(
        node_ips, node_rank, _CLOUD_PORT if port is None else port, num_local
    )


def _given(text: str, node_ips: tuple[str, ...], num_ports: int, num_local: int) -> tuple[str, ...]:
    """The first `num_local` endpoints of each machine's `num_ports`."""
    found = [place.strip() for place in text.split(",")]
    if len(found) != len(node_ips) * num_ports or num_local > num_ports:
        raise ConfigError(
            f"DISTRIBUTED_TRAINER_ENDPOINTS must have TRAINER_PORTS_NUM ({num_ports}) endpoints for "
            f"each of {len(node_ips)} machines, and at least {num_local} a machine, got {text!r}"
        )
    starts = range(0, len(found), num_ports)
    return tuple(place for start in starts for place in found[start : start + num_local])


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _set(environ: Mapping[str, str], name: str) -> str:
    text = environ.get(name, "")
    if not text.strip():
        raise ConfigError(f"{name} is not set, but --use_paddlecloud needs it")
    return text


def _number(environ: Mapping[str, str], name: str) -> int:
    text = _set(environ, name).strip()
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{name} must be a number, got {text!r}")
    return int(text)
