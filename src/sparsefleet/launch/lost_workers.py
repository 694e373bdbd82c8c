"""Report to the servers which workers have exited or are being restarted."""

from __future__ import annotations

import json
import logging
import queue
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import SparseFleetError
from sparsefleet.job_key import find_job_key

if TYPE_CHECKING:
    from sparsefleet.store import RemoteStore

__all__ = ["LostWorkers"]

_log = logging.getLogger("sparsefleet.launch")
_ENDED, _RESTARTING = "client_ended", "client_restarting"
_CONNECT_S = 2.0
_RETRY_S = 0.5
_PATIENCE_S = 60.0


class LostWorkers:
    """Notifies all servers, on its own thread, of workers that have exited or are being restarted.

    A server then counts an exited worker as lost at once instead of after the peer timeout, and
    waits longer for a worker that is being restarted.
    """

    def __init__(
        self, endpoints: Sequence[str], transport: str, environ: Mapping[str, str]
    ) -> None:
        self._endpoints = list(endpoints)
        self._transport = transport
        self._environ = dict(environ)
        self._reports: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._back: set[str] = set()

    def report(self, index: int) -> None:
        """Report that this worker has exited for good; returns at once."""
        self._put(_ENDED, f"worker-{index}")

    def expect(self, index: int) -> None:
        """Report that this worker was restarted but is not back yet; returns at once."""
        self._back.discard(f"worker-{index}")
        self._put(_RESTARTING, f"worker-{index}")

    def is_back(self, index: int) -> bool:
        """Return whether no server was waiting any more when `expect` was last reported to them."""
        return f"worker-{index}" in self._back

    def close(self) -> None:
        """Drop reports that have not been sent yet."""
        self._closing.set()
        self._reports.put(None)
        if self._thread is not None:
            self._thread.join()

    def _put(self, command: str, name: str) -> None:
        if not self._endpoints:
            return
        self._reports.put((command, name))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lost-workers", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (report := self._reports.get()) is not None:
            command, name = report
            # A worker's restart is reported again soon.
            patience_s = _PATIENCE_S if command == _ENDED else 0.0
            deadline = time.monotonic() + patience_s
            unaware = set(range(len(self._endpoints)))
            awaited = 0
            while unaware and not self._closing.is_set():
                try:
                    with self._connect() as store:
                        for server in sorted(unaware):
                            answer = store.command(server, command, name.encode())
                            awaited += json.loads(bytes(answer)).get("awaited", 0)
                            unaware.discard(server)
                except (SparseFleetError, OSError) as error:  # a server may be restarting
                    _log.info(
                        "the report '%s' for %s has not reached all servers yet: %s",
                        command,
                        name,
                        error,
                    )
                    if time.monotonic() >= deadline:
                        break
                    self._closing.wait(_RETRY_S)
            if command == _RESTARTING and not unaware and not awaited:
                self._back.add(name)

    def _connect(self) -> RemoteStore:
        from sparsefleet.store import RemoteStore, RemoteStoreConfig

        # If a client reached only some of the servers, those would later report it as lost.
        for endpoint in map(parse_endpoint, self._endpoints):
            if not endpoint.is_file:
                address = (endpoint.host, endpoint.port)
                socket.create_connection(address, timeout=_CONNECT_S).close()
        return RemoteStore(
            self._endpoints,
            name="launcher",
            transport=self._transport,  # type: ignore[arg-type]
            job_key=find_job_key(self._endpoints, self._environ),
            config=RemoteStoreConfig(connect_timeout_s=_CONNECT_S, timeout_s=_CONNECT_S),
        )
