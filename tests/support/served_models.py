"""Small exports whose predictions show which version made them, and a service within the test."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from fastapi import FastAPI
from tests.unit.serving.export.shop_model import batch
from torch import Tensor, nn

from sparsefleet.nn import SparseEmbedding, bind
from sparsefleet.optim import SGD
from sparsefleet.serving.export import save_inference_model
from sparsefleet.serving.http import ServeConfig, make_app
from sparsefleet.serving.http.service import Service
from sparsefleet.store import Constant, LocalStore


class Telling(nn.Module):
    """Predicts 1000 * (value of the dense part) + (value of the row)."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.ads = SparseEmbedding("ads", 1, initializer=Constant(number))
        self.dense = nn.Parameter(torch.tensor(1000.0 * number))

    def forward(self, ad: Tensor) -> Tensor:
        return self.ads(ad).squeeze(1) + self.dense


def score_of(number: float) -> float:
    """Return what version `number` predicts for an ad that has a row."""
    return 1001.0 * number


@functools.cache
def _telling(number: float) -> Path:
    directory = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    model = Telling(number)
    bind(model, LocalStore(), SGD(lr=0.0))
    model(torch.arange(100))
    save_inference_model(directory, model, torch.tensor([1, 2]), targets="output", onnx=False)
    return directory


def telling(directory: Path, number: float) -> Path:
    """Write an export in which ads 0..99 have rows; its predictions show the version."""
    shutil.copytree(_telling(number), directory, dirs_exist_ok=True)
    return directory


def replace_telling(directory: Path, number: float) -> None:
    """Replace the existing version as an export does: the manifest last."""
    source = _telling(number)
    for path in source.iterdir():
        if path.name != "manifest.json":
            shutil.copy(path, directory)
    shutil.copy(source / "manifest.json", directory / ".new")
    (directory / ".new").replace(directory / "manifest.json")


def shop_rows(size: int = 3, seed: int = 1) -> list[dict[str, Any]]:
    """Return examples for the shop's export, in the form of a request."""
    given = batch(size, seed)
    tags, starts = given["tags"]
    shops, ends = given["shops"]
    return [
        {
            "counts": given["counts"][at].tolist(),
            "items": given["items"][at].tolist(),
            "tags": part.tolist(),
            "shops": shops[ends[at] : ends[at + 1]].tolist(),
        }
        for at, part in enumerate(np.split(tags, starts[1:]))
    ]


class Served:
    """A service and a client of it."""

    def __init__(self, app: FastAPI, client: httpx.AsyncClient) -> None:
        self.app = app
        self.client = client
        self.service: Service = app.state.service

    async def predict(
        self, rows: Any, *, headers: Mapping[str, str] | None = None, **query: Any
    ) -> httpx.Response:
        return await self.client.post(
            "/v1/predict", json={"examples": rows}, params=query, headers=headers
        )

    async def post(self, content: bytes, kind: str) -> httpx.Response:
        return await self.client.post(
            "/v1/predict", content=content, headers={"content-type": kind}
        )


@asynccontextmanager
async def serving(models: Path, **settings: Any) -> AsyncIterator[Served]:
    """Run the application in this event loop, without a socket."""
    app = make_app(ServeConfig(models=models, **settings))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield Served(app, client)


def error_of(response: httpx.Response) -> tuple[int, str]:
    """Return status and name of an error."""
    return response.status_code, response.json()["error"]["name"]
