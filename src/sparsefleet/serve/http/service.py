"""The state of a running service, and what it does for the routes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anyio

from sparsefleet.errors import SparseFleetError, StoreUnavailableError
from sparsefleet.serve.http.admission import Admission
from sparsefleet.serve.http.catalogue import open_catalogue
from sparsefleet.serve.http.config import ServeConfig
from sparsefleet.serve.http.models import Models
from sparsefleet.serve.http.refusal import Refusal, refusal_for
from sparsefleet.serve.http.served_model import ServedModel, open_model
from sparsefleet.serve.http.telemetry import Telemetry
from sparsefleet.serve.http.version import Version

__all__ = ["Service"]


class Service:
    """Made before the event loop runs; `start` within it."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.admission = Admission(config)
        self.telemetry = Telemetry()
        self.models = Models(open_catalogue(Path(config.models), config.rows), self._open)
        self._is_started = False
        self._follower: asyncio.Task[None] | None = None
        self._asked: asyncio.Task[str | None] | None = None

    async def start(self) -> None:
        """Opens the model; raises what is wrong with it. Once."""
        if self._is_started:
            return
        await self.models.start()
        self._is_started = True
        if self.config.follow:
            self._follower = asyncio.create_task(self.models.follow())

    async def stop(self) -> None:
        """When no request is under way any more."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait([self._follower])
        await self.models.close()

    async def why_not_ready(self) -> str | None:
        """What keeps it from answering; None if nothing does."""
        if self.admission.is_draining:
            return "it is ending"
        active = self.models.active
        if active is None:
            return self.models.failure or "the model is being opened"
        if not active.batcher.is_alive:
            return "a thread that predicts has ended"
        return await self._why_no_rows(active)

    async def rows_up(self) -> bool:
        active = self.models.active
        return active is not None and await self._why_no_rows(active) is None

    async def _why_no_rows(self, model: ServedModel) -> str | None:
        """Asked once at a time, however many want to know: a store that is slow to answer shall
        not take up a thread for each."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.create_task(self._ask_for_rows(model))
        try:
            with anyio.fail_after(self.config.timeout_s):
                return await asyncio.shield(self._asked)
        except TimeoutError:
            return f"the store of rows has not answered for {self.config.timeout_s:g} s"

    async def _ask_for_rows(self, model: ServedModel) -> str | None:
        with self.models.lease(model.version):
            try:
                await asyncio.to_thread(model.rows.check)
            except StoreUnavailableError as error:
                return str(error)
        return None

    async def within_deadline(self, work: Any, timeout_s: float | None = None) -> Any:
        """The result of an awaitable; errors as answers. None: the usual time."""
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
                f"there was no answer within {timeout_s:g} s: try again later, with fewer examples",
            ) from None

    def _open(self, version: Version) -> ServedModel:
        return open_model(version.directory, version.name, self.config, self.telemetry.batch)
