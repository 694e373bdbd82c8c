"""Reports workers that have ended to the servers, which would otherwise wait for them."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sparsefleet.errors import SparseFleetError
from sparsefleet.job_key import find_job_key

if TYPE_CHECKING:
    from sparsefleet.store import RemoteStore

__all__ = ["LostWorkers"]

_log = logging.getLogger("sparsefleet.launch")
_CONNECT_S = 2.0
_RETRY_S = 0.5
_PATIENCE_S = 60.0


class LostWorkers:
    """Tells all servers, in a thread of its own, that a worker has ended and does not come back.

    A server counts the worker as lost at once instead of after its peer timeout.
    """

    def __init__(
        self, endpoints: Sequence[str], transport: str, environ: Mapping[str, str]
    ) -> None:
        self._endpoints = list(endpoints)
        self._transport = transport
        self._environ = dict(environ)
        self._names: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def report(self, index: int) -> None:
        """Report the worker of this index; returns at once."""
        if not self._endpoints:
            return
        self._names.put(f"worker-{index}")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lost-workers", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Abandon reports that have not been sent yet."""
        self._closing.set()
        self._names.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (name := self._names.get()) is not None:
            deadline = time.monotonic() + _PATIENCE_S
            unaware = set(range(len(self._endpoints)))
            while unaware and not self._closing.is_set() and time.monotonic() < deadline:
                try:
                    with self._connect() as store:
                        for server in sorted(unaware):
                            store.command(server, "client_ended", name.encode())
                            unaware.discard(server)
                except (SparseFleetError, OSError) as error:  # a server may be restarting
                    _log.info("%s has ended; not all servers know yet: %s", name, error)
                    self._closing.wait(_RETRY_S)

    def _connect(self) -> RemoteStore:
        from sparsefleet.store import RemoteStore, RemoteStoreConfig

        return RemoteStore(
            self._endpoints,
            name="launcher",
            transport=self._transport,  # type: ignore[arg-type]
            job_key=find_job_key(self._endpoints, self._environ),
            config=RemoteStoreConfig(connect_timeout_s=_CONNECT_S, timeout_s=_CONNECT_S),
        )
