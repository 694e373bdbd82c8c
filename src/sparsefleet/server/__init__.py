"""The server process and its replica: configuration, life cycle and commands."""

from sparsefleet.server.run_replica import ReplicaConfig, run_replica
from sparsefleet.server.run_server import ServerConfig, run_server

__all__ = ["ReplicaConfig", "ServerConfig", "run_replica", "run_server"]
