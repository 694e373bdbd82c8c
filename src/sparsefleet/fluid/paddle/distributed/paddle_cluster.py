"""The machines of a collective job, as described to Fluid's launcher."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from sparsefleet.endpoint import Endpoint, parse_endpoint
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.checked_environ import CheckedEnviron

__all__ = ["PaddleCluster", "cluster_from_cloud"]

_CLOUD_PORT = 6170


@dataclass(frozen=True, slots=True)
class PaddleCluster:
    """All machines, and the endpoint of every process, machine by machine."""

    node_ips: tuple[str, ...]
    node_rank: int
    """The index of this machine."""
    endpoints: tuple[str, ...]

    @property
    def first_port(self) -> int:
        return parse_endpoint(self.endpoints[0]).port

    @classmethod
    def from_first_port(
        cls, node_ips: tuple[str, ...], node_rank: int, port: int | None, num_local: int
    ) -> PaddleCluster:
        """Use ports starting at `port` on every machine; None: free ports of the only machine.

        >>> PaddleCluster.from_first_port(("10.0.0.7", "10.0.0.8"), 0, 6070, 2).endpoints
        ('10.0.0.7:6070', '10.0.0.7:6071', '10.0.0.8:6070', '10.0.0.8:6071')
        """
        if len(set(node_ips)) != len(node_ips):
            raise ConfigError(f"duplicate machine in {','.join(node_ips)}")
        ports = _free_ports(num_local) if port is None else range(port, port + num_local)
        places = tuple(str(Endpoint(ip, number)) for ip in node_ips for number in ports)
        return cls(node_ips, node_rank, places)


def cluster_from_cloud(
    variables: Mapping[str, str], started_port: int | None, num_local: int
) -> PaddleCluster:
    """Read the variables of Paddle's scheduler. Raises ConfigError naming the invalid one."""
    environ = CheckedEnviron(variables, "--use_paddlecloud needs it")
    node_ips = tuple(text.strip() for text in environ["PADDLE_TRAINERS"].text.split(","))
    environ["POD_IP"].one_of(*node_ips)
    limit = (len(node_ips), "machines in PADDLE_TRAINERS")
    node_rank = environ["PADDLE_TRAINER_ID"].integer(low=0, below=limit)
    num_ports = environ["TRAINER_PORTS_NUM"].integer(low=1)
    given = environ.get("DISTRIBUTED_TRAINER_ENDPOINTS")
    if given is not None:
        found = given.endpoints()
        if len(found) != len(node_ips) * num_ports or num_local > num_ports:
            raise given.refused(
                f"TRAINER_PORTS_NUM ({num_ports}) endpoints for each of {len(node_ips)} machines, "
                f"but at least {num_local} are needed"
            )
        starts = range(0, len(found), num_ports)
        places = [place for start in starts for place in found[start : start + num_local]]
        return PaddleCluster(node_ips, node_rank, tuple(places))
    port = started_port or _CLOUD_PORT
    told = environ.get("PADDLE_PORT")
    if told is not None and num_ports >= num_local:
        port = told.integer(low=1)
    return PaddleCluster.from_first_port(node_ips, node_rank, port, num_local)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports
