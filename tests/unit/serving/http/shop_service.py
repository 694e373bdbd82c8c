"""The service of the shop's export within a test, with rows that arrive on demand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.served_models import Served, serving
from tests.unit.serving.export.shop_model import exported_shop

from sparsefleet.errors import StoreUnavailableError
from sparsefleet.serving import FileRows, Tables

WAIT_S = 30.0


def on_shop(test: Callable[[Served], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with serving(exported_shop()[0], **settings) as served:
            await test(served)

    asyncio.run(run())


class HeldRows(FileRows):
    """Rows that block until released; `away` makes them unavailable."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.go = threading.Event()
        self.away = False

    def tables(self, ids: Mapping[str, Any] | None = None) -> Tables:
        assert self.go.wait(WAIT_S)
        self.check()
        return super().tables(ids)

    def check(self) -> None:
        if self.away:
            raise StoreUnavailableError("the rows are away: wait")


def held(monkeypatch: pytest.MonkeyPatch) -> HeldRows:
    rows = HeldRows(exported_shop()[0])
    rows.go.set()  # while the model is opened
    monkeypatch.setattr("sparsefleet.serving.http.models._rows_elsewhere", lambda *_: rows)
    return rows
