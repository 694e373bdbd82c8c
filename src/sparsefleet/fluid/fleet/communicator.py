"""The API of Fluid's gradient-sending thread, to the extent that programs use it."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Sequence
from typing import Any

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.fluid.fleet.distribute_transpiler import DistributedMode
from sparsefleet.fluid.framework import Program

__all__ = ["Communicator", "DistributedMode", "wait_server_ready"]

_log = logging.getLogger("sparsefleet.fluid")
_RETRY_S = 1.0


class Communicator:
    """Starts and stops the exchange between a worker's program and its servers.

    A program from a transpiler or fleet communicates from its first run, so `start` has no effect
    on it; `stop` waits until everything sent has arrived.
    """

    def __init__(
        self,
        program: Program,
        mode: Any = None,
        kwargs: dict[str, Any] | None = None,
        envs: dict[str, str] | None = None,
    ) -> None:
        if not isinstance(program, Program):
            raise AssertionError(f"Communicator takes a fluid.Program, got {program!r}")
        del mode, kwargs, envs
        self._program = program
        self._is_running = False

    def start(self) -> None:
        """Mark the communicator as running."""
        self._is_running = True

    def stop(self) -> None:
        """Wait until the servers have received everything that was sent."""
        role = self._program._distributed
        if self._is_running and role is not None:
            role.close()
        self._is_running = False

    def is_running(self) -> bool:
        """Return whether the communicator is running."""
        return self._is_running


def wait_server_ready(endpoints: Sequence[str]) -> None:
    """Wait until each of these servers accepts connections."""
    if not isinstance(endpoints, (list, tuple)):
        raise AssertionError(f"endpoints must be a list of 'host:port', got {endpoints!r}")
    waiting = [parse_endpoint(one) for one in endpoints]
    while waiting:
        waiting = [one for one in waiting if not _accepts(one.host, one.port)]
        if waiting:
            _log.info("waiting for servers: %s", ", ".join(map(str, waiting)))
            time.sleep(_RETRY_S)


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_RETRY_S).close()
    except OSError:
        return False
    return True
