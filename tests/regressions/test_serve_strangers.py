"""Strangers learn nothing from a service with a token, and web pages cannot reach it by rebinding.

/readyz, /openapi.json and the page used to answer without the token, and any Host header was
accepted. A real process, real sockets.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.support.served_models import telling
from tests.support.service_process import ServiceProcess


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    model = telling(tmp_path_factory.mktemp("models") / "one", 1)
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text("a-secret-token\n")
    flags = ("--token-file", str(token), "--allowed-hosts", "model.example.com,.example.org")
    with ServiceProcess(model, *flags) as process:
        yield process


def test_strangers_learn_nothing_without_the_token(guarded: ServiceProcess) -> None:
    told = httpx.get(guarded.url + "/healthz")
    assert told.json() == {"status": "alive"}
    paths = ("/", "/docs", "/static/index.js", "/openapi.json", "/readyz", "/metrics", "/v1/model")
    for path in paths:
        refused = httpx.get(guarded.url + path)
        assert (refused.status_code, refused.json()["error"]["name"]) == (401, "unauthorized"), path
        allowed = httpx.get(guarded.url + path, headers={"Authorization": "Bearer a-secret-token"})
        assert allowed.status_code == 200, path


def test_page_whose_name_was_pointed_here_is_refused(guarded: ServiceProcess) -> None:
    for host, status in (
        ("evil.test", 421),
        ("model.example.com", 200),
        ("a.example.org:8000", 200),
        (httpx.URL(guarded.url).netloc.decode(), 200),
    ):
        answer = httpx.get(guarded.url + "/healthz", headers={"Host": host})
        assert answer.status_code == status, host
        if status == 421:
            assert answer.json()["error"]["name"] == "unknown_host"
