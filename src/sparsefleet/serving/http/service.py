"""The state of a running service, shared by its routes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio

from sparsefleet.errors import SparseFleetError, StoreUnavailableError
from sparsefleet.serving.http.admission import Admission, Place, parse_bytes
from sparsefleet.serving.http.catalogue import Version, open_catalogue
from sparsefleet.serving.http.config import ServeConfig
from sparsefleet.serving.http.connections import Connections
from sparsefleet.serving.http.models import Models, ServedModel, open_model
from sparsefleet.serving.http.refusal import Refusal, refusal_for
from sparsefleet.serving.http.telemetry import Telemetry

__all__ = ["Service"]

_LONG_BODY = 64 << 10
_PARSED_BYTES = 8  # maximum per byte of a parsed body, since an id becomes an int64
Parsed = TypeVar("Parsed")


class Service:
    """A running service. Construct it before the event loop and call `start` inside the loop."""

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
            return "a prediction thread has ended"
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

        timeout_s: the configured timeout by default.
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
        self, place: Place, form: str, size: int, parse: Callable[[], Parsed]
    ) -> Parsed:
        """Return the result of `parse()`, which parses a body of this format and size.

        A long body is parsed in a thread so that it does not block other requests, and only one
        body at a time, because parsing two at once would be no faster in Python, and each parse
        needs many times the memory of its body.
        """
        if size < _LONG_BODY:
            return parse()
        found: Parsed = await self.within_deadline(self._parsed_long(place, form, size, parse))
        return found

    async def _parsed_long(
        self, place: Place, form: str, size: int, parse: Callable[[], Parsed]
    ) -> Parsed:
        await self._parsing.acquire()
        try:
            place.hold(parse_bytes(form, size))
            work = asyncio.get_running_loop().run_in_executor(None, parse)
        except BaseException:
            self._parsing.release()
            raise

        def done(work: asyncio.Future[Parsed]) -> None:
            place.shrink(size * _PARSED_BYTES)
            self._parsing.release()
            if not work.cancelled():
                work.exception()  # the request may have timed out, so mark the error as retrieved

        work.add_done_callback(done)
        return await asyncio.shield(work)

    def _open(self, version: Version) -> ServedModel:
        return open_model(version.directory, version.name, self.config, self.telemetry.batch)
