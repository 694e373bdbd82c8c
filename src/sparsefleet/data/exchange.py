"""How workers give one another bytes; what `fleet` offers and the data above it uses."""

from __future__ import annotations

from typing import Protocol


class Exchange(Protocol):
    """One meeting of all workers in which each sends to each. Open between `open` and `close`.

    `send` is called by one thread and `receive` by another; what any worker raises ends the
    exchange for all, with an error that names the worker.
    """

    @property
    def rank(self) -> int:
        """This worker."""

    @property
    def size(self) -> int:
        """All workers."""

    def send(self, to: int, data: bytes) -> None:
        """Returns when the data is on its way: it waits while the other has much unread mail."""

    def receive(self) -> list[bytes]:
        """What has come, at least one; waits for it."""

    def fail(self, error: BaseException) -> None:
        """This worker cannot go on: the others raise, now or at their next call."""

    def close(self) -> None:
        """Returns when all workers have everything; raises if one was lost before."""


class Workers(Protocol):
    """The workers of a job: `sparsefleet.fleet.Fleet` is such a thing."""

    def worker_index(self) -> int: ...

    def worker_num(self) -> int: ...

    def all_gather(self, data: bytes) -> list[bytes]: ...

    def open_exchange(self) -> Exchange:
        """All workers call it; returns when all have."""
