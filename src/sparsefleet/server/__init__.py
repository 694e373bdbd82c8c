"""The server process: its settings, its life, the commands it answers."""

from sparsefleet.server.command_loop import CommandLoop, Handler
from sparsefleet.server.handlers import default_handlers
from sparsefleet.server.run_server import run_server
from sparsefleet.server.server_config import ServerConfig, TransportName

__all__ = [
    "CommandLoop",
    "Handler",
    "ServerConfig",
    "TransportName",
    "default_handlers",
    "run_server",
]
