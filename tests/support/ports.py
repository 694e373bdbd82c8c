"""Ports for processes that need theirs before they start."""

from __future__ import annotations

import contextlib
import random
import socket

# Below the range from which systems take the ports of outgoing connections: one that is free now
# is not given to a connection of another test a moment later.
_PORTS = range(15_000, 32_000)


def free_ports(count: int = 1) -> list[int]:
    """Return consecutive ports of 127.0.0.1 that are free now."""
    choice = random.SystemRandom()
    while True:
        first = choice.randrange(_PORTS.start, _PORTS.stop - count)
        found = list(range(first, first + count))
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in found:
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return found
