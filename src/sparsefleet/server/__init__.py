"""The server process: its settings, its life."""

from sparsefleet.server.run_server import run_server
from sparsefleet.server.server_config import ServerConfig, TransportName

__all__ = ["ServerConfig", "TransportName", "run_server"]
