"""Workers as threads that exchange bytes through queues: no fleet, no sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, Queue
from typing import Any, TypeVar

from sparsefleet.errors import PeerLostError

Outcome = TypeVar("Outcome")
ENDED_WITHIN_S = 60.0
MAILBOX_BLOCKS = 2  # small enough that senders have to wait


class Hub:
    """What the workers share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.boxes: list[Queue[bytes]] = [Queue(MAILBOX_BLOCKS) for _ in range(size)]
        self.met = threading.Barrier(size)
        self.closed = threading.Barrier(size)
        self.gathered: list[bytes] = [b""] * size
        self.failed: BaseException | None = None


class QueueExchange:
    """An `Exchange` over queues."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self._hub = hub
        self.rank = rank
        self.size = hub.size

    def send(self, to: int, data: bytes) -> None:
        self._until_done(lambda: self._hub.boxes[to].put(data, timeout=0.05))

    def send_all(self, letters: Sequence[tuple[int, bytes]]) -> None:
        for to, data in letters:
            self.send(to, data)

    def receive(self) -> list[bytes]:
        return [self._until_done(lambda: self._hub.boxes[self.rank].get(timeout=0.05))]

    def fail(self, error: BaseException) -> None:
        self._hub.failed = self._hub.failed or error
        self._hub.closed.abort()

    def close(self) -> None:
        try:
            self._hub.closed.wait(ENDED_WITHIN_S)
        except threading.BrokenBarrierError:
            raise PeerLostError(f"another worker failed: {self._hub.failed}") from None

    def _until_done(self, call: Callable[[], Any]) -> Any:
        while self._hub.failed is None:
            try:
                return call()
            except Empty:
                continue
            except Exception as error:
                if type(error).__name__ != "Full":
                    raise
        raise PeerLostError(f"another worker failed: {self._hub.failed}")


class WorkerOf:
    """A `Workers` of the hub."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self._hub = hub
        self._rank = rank
        self.exchanges: list[QueueExchange] = []

    def worker_index(self) -> int:
        return self._rank

    def worker_num(self) -> int:
        return self._hub.size

    def all_gather(self, data: bytes) -> list[bytes]:
        self._hub.gathered[self._rank] = data
        self._hub.met.wait(ENDED_WITHIN_S)
        found = list(self._hub.gathered)
        self._hub.met.wait(ENDED_WITHIN_S)
        return found

    def open_exchange(self) -> QueueExchange:
        self._hub.met.wait(ENDED_WITHIN_S)
        self.exchanges.append(QueueExchange(self._hub, self._rank))
        return self.exchanges[-1]


def as_workers(size: int, work: Callable[[WorkerOf], Outcome]) -> list[Outcome]:
    """Return what `work` returned in each worker, by rank; the first exception is raised."""
    hub = Hub(size)
    with ThreadPoolExecutor(size) as pool:
        running = [pool.submit(work, WorkerOf(hub, rank)) for rank in range(size)]
        return [future.result(ENDED_WITHIN_S) for future in running]
