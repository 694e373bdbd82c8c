"""The state of a running service, shared by its routes, and its metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from sparsefleet.errors import SparseFleetError, StoreUnavailableError
from sparsefleet.serving.http.admission import Admission, AdmittedRequest, parse_bytes
from sparsefleet.serving.http.catalogue import Version, open_catalogue
from sparsefleet.serving.http.config import ServeConfig
from sparsefleet.serving.http.connections import Connections
from sparsefleet.serving.http.models import Models, ServedModel, open_model
from sparsefleet.serving.http.refusal import Refusal, refusal_for
from sparsefleet.serving.row_stores import UpdatedRows
from sparsefleet.serving.row_stores.row_store import RowStore

__all__ = ["Service", "Telemetry"]

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)


class Telemetry:
    """The metrics of one service, in its own registry. Thread-safe except for `text`."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._requests = Counter(
            "sparsefleet_requests", "Requests answered.", ["route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "sparsefleet_request_seconds",
            "Time from a request's headers to the end of its response.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._batches = Histogram(
            "sparsefleet_batch_examples", "Examples per batch.", buckets=_SIZES, registry=registry
        )
        self._predictions = Histogram(
            "sparsefleet_batch_seconds", "Time per batch.", buckets=_SECONDS, registry=registry
        )
        self._gauges = {
            name: Gauge(f"sparsefleet_{name}", what, registry=registry)
            for name, what in (
                ("requests_under_way", "Requests being read, waiting or computed."),
                ("bytes_under_way", "Estimated memory of requests in progress."),
                ("connections", "Open connections."),
                ("connections_dropped", "Connections closed to make room for others."),
                ("ready", "1 if /readyz returns 200."),
                ("rows_up", "1 if the rows are available."),
                ("rows_age_seconds", "Age of the newest active update; NaN if there is none."),
                ("update_number", "Number of the newest active update; 0 if there is none."),
                ("update_bytes", "Memory of updated rows."),
                ("updates_failing", "1 if newer updates cannot be read or applied."),
                ("model_switches", "Number of switches to a different version."),
                ("choice_failed", "1 if the chosen version cannot be served."),
            )
        }
        self._model = Gauge(
            "sparsefleet_model_info",
            "1 for the active model.",
            ["name", "version", "engine"],
            registry=registry,
        )

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, requests: int, examples: int, seconds: float) -> None:
        """Record the size and duration of one batch."""
        del requests
        self._batches.observe(examples)
        self._predictions.observe(seconds)

    def text(
        self, models: Models, admission: Admission, connections: Connections, rows_up: bool
    ) -> bytes:
        """Return all metrics in the Prometheus text format."""
        active = models.active
        fresh = active.rows.freshness() if active else None
        can_predict = active is not None and active.batcher.is_alive and rows_up
        values = {
            "requests_under_way": admission.receiving + admission.requests,
            "bytes_under_way": admission.bytes,
            "connections": len(connections),
            "connections_dropped": connections.dropped,
            "ready": float(can_predict and not admission.is_draining),
            "rows_up": float(rows_up),
            "rows_age_seconds": float("nan") if fresh is None else max(0.0, time.time() - fresh),
            **_of_updates(active.rows if active else None),
            "model_switches": models.switches,
            "choice_failed": float(models.failure is not None),
        }
        for name, value in values.items():
            self._gauges[name].set(value)
        self._model.clear()
        if active is not None:
            self._model.labels(active.name, active.version, active.predictor.engine).set(1)
        found: bytes = generate_latest(self._registry)
        return found


def _of_updates(rows: RowStore | None) -> dict[str, float]:
    updated = rows if isinstance(rows, UpdatedRows) else None
    return {
        "update_number": float(updated.sequence if updated else 0),
        "update_bytes": float(updated.memory_bytes if updated else 0),
        "updates_failing": float(updated is not None and updated.problem is not None),
    }


_LONG_BODY = 64 << 10
_PARSED_BYTES = 8  # maximum per byte of a parsed body, since an id becomes an int64
Parsed = TypeVar("Parsed")


class Service:
    """An HTTP service. Construct it before the event loop starts; call `start` inside the loop."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.admission = Admission(config)
        self.connections = Connections(config.max_connections, config.max_connections_per_address)
        self.telemetry = Telemetry()
        self.models = Models(open_catalogue(Path(config.models), config.rows), self._open)
        self._is_started = False
        self._follower: asyncio.Task[None] | None = None
        self._asked: asyncio.Task[str | None] | None = None
        self._parsing = asyncio.Lock()

    async def start(self) -> None:
        """Open the model. Raises an error if that fails; later calls do nothing."""
        if self._is_started:
            return
        await self.models.start()
        self._is_started = True
        if self.config.follow:
            self._follower = asyncio.create_task(self.models.follow())

    async def stop(self) -> None:
        """Close everything. No request may be in progress."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait([self._follower])
        await self.models.close()

    async def why_not_ready(self) -> str | None:
        """Return the reason why the service cannot make predictions, or None if it can."""
        if self.admission.is_draining:
            return "the service is shutting down"
        active = self.models.active
        if active is None:
            return self.models.failure or "the model is loading"
        if not active.batcher.is_alive:
            return "a prediction thread has stopped"
        return await self._why_no_rows(active)

    async def rows_up(self) -> bool:
        active = self.models.active
        return active is not None and await self._why_no_rows(active) is None

    async def _why_no_rows(self, model: ServedModel) -> str | None:
        """Return why the row store is unavailable, or None if it is available.

        Only one check runs at a time, so that a slow store blocks only one thread.
        """
        if self._asked is None or self._asked.done():
            self._asked = asyncio.create_task(self._ask_for_rows(model))
        try:
            with anyio.fail_after(self.config.timeout_s):
                return await asyncio.shield(self._asked)
        except TimeoutError:
            return f"the row store has not responded for {self.config.timeout_s:g} s"

    async def _ask_for_rows(self, model: ServedModel) -> str | None:
        with self.models.lease(model.version):
            try:
                await asyncio.to_thread(model.rows.check)
            except StoreUnavailableError as error:
                return str(error)
        return None

    async def within_deadline(self, work: Any, timeout_s: float | None = None) -> Any:
        """Await `work` and return its result, converting errors to `Refusal`.

        timeout_s: None means the configured timeout.
        """
        timeout_s = self.config.timeout_s if timeout_s is None else timeout_s
        try:
            with anyio.fail_after(timeout_s):
                return await work
        except SparseFleetError as error:
            raise refusal_for(error) from error
        except TimeoutError:
            raise Refusal(
                504,
                "timed_out",
                f"the request timed out after {timeout_s:g} s; try again later with fewer examples",
            ) from None

    async def parsed(
        self, admitted: AdmittedRequest, form: str, size: int, parse: Callable[[], Parsed]
    ) -> Parsed:
        """Return the result of `parse()`, which parses a body of this format and size.

        A long body is parsed in a thread so that it does not block other requests, and only one
        body at a time, because parsing two at once would be no faster in Python, and each parse
        needs many times the memory of its body.
        """
        if size < _LONG_BODY:
            return parse()
        found: Parsed = await self.within_deadline(self._parsed_long(admitted, form, size, parse))
        return found

    async def _parsed_long(
        self, admitted: AdmittedRequest, form: str, size: int, parse: Callable[[], Parsed]
    ) -> Parsed:
        await self._parsing.acquire()
        try:
            admitted.hold(parse_bytes(form, size))
            work = asyncio.get_running_loop().run_in_executor(None, parse)
        except BaseException:
            self._parsing.release()
            raise

        def done(work: asyncio.Future[Parsed]) -> None:
            admitted.shrink(size * _PARSED_BYTES)
            self._parsing.release()
            if not work.cancelled():
                work.exception()  # the request may have timed out, so mark the error as retrieved

        work.add_done_callback(done)
        return await asyncio.shield(work)

    def _open(self, version: Version) -> ServedModel:
        return open_model(version.directory, version.name, self.config, self.telemetry.batch)
