"""The server process: its configuration, life cycle and commands."""

from sparsefleet.server.run_server import ServerConfig, run_server

__all__ = [
    "ServerConfig",
    "run_server",
]
