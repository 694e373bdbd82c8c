"""What a rank sends: counted by kind, in all and to other nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Traffic", "Transfer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """One collective call as this rank saw it."""

    kind: str
    """"all_reduce", "reduce", "broadcast", "all_gather"; what happened to a payload."""

    payload_bytes: int
    """Size of the tensor, the same on all ranks."""

    sent_bytes: int
    """What this rank sent for it."""

    sent_across_nodes_bytes: int
    """The part of that which went to other nodes."""


class Traffic:
    """Counters of a rank. Thread-safe.

    >>> traffic = Traffic()
    >>> traffic.count(Transfer(kind="reduce", payload_bytes=8, sent_bytes=8,
    ...                        sent_across_nodes_bytes=0))
    >>> traffic.calls, traffic.sent_bytes, traffic.calls_of("reduce")
    (1, 8, 1)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, int] = {}
        self._payload_bytes: dict[str, int] = {}
        self._sent_bytes = 0
        self._across_bytes = 0
        self._listeners: list[Callable[[Transfer], None]] = []

    @property
    def calls(self) -> int:
        """Collective calls of all kinds."""
        with self._lock:
            return sum(self._calls.values())

    @property
    def sent_bytes(self) -> int:
        """What this rank sent."""
        with self._lock:
            return self._sent_bytes

    @property
    def sent_across_nodes_bytes(self) -> int:
        """What this rank sent to ranks of other nodes."""
        with self._lock:
            return self._across_bytes

    def calls_of(self, kind: str) -> int:
        """Calls of one kind."""
        with self._lock:
            return self._calls.get(kind, 0)

    def payload_bytes_of(self, kind: str) -> int:
        """Bytes of the tensors of one kind, whatever it took to move them."""
        with self._lock:
            return self._payload_bytes.get(kind, 0)

    def listen(self, listener: Callable[[Transfer], None]) -> None:
        """Has ``listener`` called for every transfer from now on, in the thread that counts."""
        with self._lock:
            self._listeners.append(listener)

    def count(self, transfer: Transfer) -> None:
        """Adds one call."""
        with self._lock:
            kind = transfer.kind
            self._calls[kind] = self._calls.get(kind, 0) + 1
            payload = self._payload_bytes.get(kind, 0) + transfer.payload_bytes
            self._payload_bytes[kind] = payload
            self._sent_bytes += transfer.sent_bytes
            self._across_bytes += transfer.sent_across_nodes_bytes
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener(transfer)
