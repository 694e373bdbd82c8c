"""Access control: tokens, hosts, pages of other sites."""

from __future__ import annotations

import pytest
from tests.support.served_models import Served, error_of
from tests.unit.serving.http.shop_service import held, on_shop


def test_token_guards_all_but_liveness() -> None:
    async def test(served: Served) -> None:
        client = served.client
        assert (await client.get("/healthz")).json() == {"status": "alive"}
        for path in ("/readyz", "/v1/model", "/v1/versions", "/metrics", "/not-there"):
            answer = await client.get(path)
            assert error_of(answer) == (401, "unauthorized"), path
            assert answer.headers["www-authenticate"] == "Bearer"
        for given in ("", "Bearer", "Bearer wrong-token", "Basic right-token", "Bearer right-toke"):
            answer = await served.predict([], headers={"authorization": given})
            assert error_of(answer) == (401, "unauthorized")
        right = {"authorization": "bearer right-token"}
        assert (await served.predict([], headers=right)).status_code == 200
        assert "version" in (await client.get("/readyz", headers=right)).json()
        assert (await client.get("/not-there", headers=right)).status_code == 404

    on_shop(test, token="right-token")


def test_pages_take_the_token_as_the_password_that_a_browser_asks_for() -> None:
    pages = ("/", "/docs", "/openapi.json", "/static/index.js", "/static/style.css")

    async def test(served: Served) -> None:
        for path in pages:
            answer = await served.client.get(path)
            assert error_of(answer) == (401, "unauthorized"), path
            assert answer.headers["www-authenticate"].startswith("Basic realm=")
            for name, password, status in (
                ("", "right-token", 200),
                ("someone", "right-token", 200),
                ("right-token", "", 401),
                ("", "wrong-token", 401),
            ):
                answer = await served.client.get(path, auth=(name, password))
                assert answer.status_code == status, path
            for header in ("Bearer right-token", "Basic !", "Basic cmlnaHQtdG9rZW4"):
                answer = await served.client.get(path, headers={"authorization": header})
                assert answer.status_code == (200 if header.startswith("Bearer") else 401)
        # A browser sends the password of a page by itself, even for other sites; it opens no API.
        for path in ("/v1/model", "/metrics", "/readyz"):
            answer = await served.client.get(path, auth=("", "right-token"))
            assert error_of(answer) == (401, "unauthorized")

    on_shop(test, token="right-token")


def test_open_readyz_tells_strangers_no_more_than_its_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = held(monkeypatch)
    right = {"authorization": "Bearer right-token"}

    async def test(served: Served) -> None:
        client = served.client
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        assert (await client.get("/readyz", headers=right)).json()["version"]
        assert (await client.get("/v1/model")).status_code == 401
        rows.away = True
        stranger = await client.get("/readyz")
        assert error_of(stranger) == (503, "not_ready")
        assert "the rows are away" not in stranger.text
        assert "the rows are away" in (await client.get("/readyz", headers=right)).text

    on_shop(test, token="right-token", open_readyz=True)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("LOCALHOST.", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("192.168.3.4:8000", 200),  # an IP address is not a name that someone else could point here
        ("model.example.com", 200),
        ("below.in.example.org:80", 200),
        ("in.example.org", 200),
        ("evil.test", 421),
        ("sub.example.org.evil.test", 421),
        ("model.example.com.evil.test", 421),
        ("127.0.0.1.evil.test", 421),
        ("localhost@evil.test", 421),
        ("evil.test#localhost", 421),
    ],
)
def test_requests_for_other_hosts_are_refused(host: str, status: int) -> None:
    async def test(served: Served) -> None:
        for path in ("/", "/healthz", "/v1/model"):
            answer = await served.client.get(path, headers={"host": host})
            assert answer.status_code == status
            if status == 421:
                assert error_of(answer) == (421, "unknown_host")
                assert "--allowed-hosts" in answer.text

    on_shop(test, allowed_hosts=("model.example.com", ".in.example.org"))


def test_any_host_is_taken_where_that_is_wanted() -> None:
    async def test(served: Served) -> None:
        assert (await served.client.get("/", headers={"host": "evil.test"})).status_code == 200

    on_shop(test, allowed_hosts=("*",))


def test_pages_of_other_sites_may_not_ask() -> None:
    async def test(served: Served) -> None:
        for site, status in (("cross-site", 403), ("same-origin", 200), ("none", 200)):
            headers = {"sec-fetch-site": site}
            assert (await served.predict([], headers=headers)).status_code == status
        # Browsers send this header only to https and loopback; to others they send the page's
        # origin.
        for origin, status in (
            ("http://localhost", 200),
            ("https://model.example.com", 200),
            ("http://evil.test", 403),
            ("http://6.6.6.6", 403),
            ("null", 403),
        ):
            answer = await served.client.post("/v1/versions/rollback", headers={"origin": origin})
            assert (answer.status_code == 403) == (status == 403), origin

    on_shop(test, allowed_hosts=("model.example.com",))
