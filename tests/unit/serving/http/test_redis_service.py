"""A service with rows in a real Redis that is down, slow, empty, switched or updated."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.redis_process import RedisProcess
from tests.support.served_models import Served, error_of, score_of, serving, telling

from sparsefleet.serving.export import read_manifest
from sparsefleet.serving.row_stores import RedisVersions, push_rows
from sparsefleet.serving.updates import RedisServer

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsefleet.serving.http.models._FOLLOW_S", 0.02)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisProcess]:
    (tmp_path / "redis").mkdir()
    with RedisProcess(tmp_path / "redis") as process:
        yield process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    telling(tmp_path / "models" / "one", 1)
    telling(tmp_path / "models" / "two", 2)
    return tmp_path / "models"


def push(redis: RedisProcess, directory: Path, *, activate: bool = True) -> str:
    server = RedisServer(redis.url)
    try:
        digest = push_rows(directory, server).digest
        if activate:
            RedisVersions(server).activate(digest)
        return digest
    finally:
        server.close()


def run(
    models: Path, redis: RedisProcess, test: Callable[[Served], Awaitable[None]], **settings: Any
) -> None:
    async def main() -> None:
        options = {"engine": "torch", "rows": redis.url, "store_timeout_s": 0.3, **settings}
        async with serving(models, **options) as served:
            await test(served)

    asyncio.run(main())


async def score(served: Served) -> float:
    answer = await served.predict([{"ad": 5}])
    assert answer.status_code == 200, answer.text
    found: float = answer.json()["predictions"]["output"][0]
    return found


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(WAIT_S):
        while not await holds():
            await asyncio.sleep(0.02)


async def until_score(served: Served, wanted: float) -> None:
    async def holds() -> bool:
        return await score(served) == wanted

    await until(holds)


async def until_ready(served: Served) -> None:
    async def holds() -> bool:
        return (await served.client.get("/readyz")).status_code == 200

    await until(holds)


def test_redis_that_goes_is_reported_and_empty_rows_are_never_served(
    folder: Path, redis: RedisProcess
) -> None:
    push(redis, folder / "one")

    async def test(served: Served) -> None:
        assert await score(served) == score_of(1)
        redis.kill()
        # What is not kept here has to be fetched.
        assert error_of(await served.predict([{"ad": 7}])) == (503, "rows_unavailable")
        assert error_of(await served.client.get("/readyz")) == (503, "not_ready")
        await asyncio.to_thread(redis.start)  # empty
        answer = await served.predict([{"ad": 8}])
        assert error_of(answer) == (503, "rows_unavailable")
        assert "push-rows" in answer.text
        assert error_of(await served.client.get("/readyz")) == (503, "not_ready")
        assert (await served.client.get("/healthz")).status_code == 200
        await asyncio.to_thread(push, redis, folder / "one")
        await until_ready(served)
        assert await score(served) == score_of(1)

    run(folder, redis, test, cache_bytes=0)


def test_redis_that_does_not_answer_is_reported_within_the_deadline(
    folder: Path, redis: RedisProcess
) -> None:
    push(redis, folder / "one")

    async def test(served: Served) -> None:
        redis.pause()
        try:
            answers = await asyncio.gather(*(served.predict([{"ad": n}]) for n in range(4)))
            assert {answer.status_code for answer in answers} <= {503, 504}
        finally:
            redis.go_on()
        await until_ready(served)
        assert await score(served) == score_of(1)

    run(folder, redis, test, cache_bytes=0)


def test_service_starts_without_redis_and_is_ready_when_it_comes(
    folder: Path, redis: RedisProcess
) -> None:
    redis.kill()

    async def test(served: Served) -> None:
        assert error_of(await served.predict([{"ad": 5}])) == (503, "no_model")
        await asyncio.to_thread(redis.start)
        await asyncio.to_thread(push, redis, folder / "two")
        await until_ready(served)
        assert await score(served) == score_of(2)

    run(folder, redis, test)


def test_activated_version_is_followed_and_rolled_back_by_either_command(
    folder: Path, redis: RedisProcess
) -> None:
    push(redis, folder / "one")

    def command(*arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "sparsefleet", "push-rows", *arguments, redis.url],
            check=True,
            timeout=WAIT_S,
            capture_output=True,
        )

    async def test(served: Served) -> None:
        digest = await asyncio.to_thread(push, redis, folder / "two", activate=False)
        assert await score(served) == score_of(1)
        body = {"version": "two"}
        assert (await served.client.post("/v1/versions/active", json=body)).status_code == 200
        assert await score(served) == score_of(2)
        server = RedisServer(redis.url)
        assert await asyncio.to_thread(RedisVersions(server).active) == digest
        await asyncio.to_thread(command, "--rollback")
        await until_score(served, score_of(1))
        await asyncio.to_thread(RedisVersions(server).activate, digest)
        await until_score(served, score_of(2))
        back = await served.client.post("/v1/versions/rollback")
        assert back.json()["active"]["name"] == "one"
        assert await asyncio.to_thread(RedisVersions(server).active) != digest
        server.close()

    run(folder, redis, test)


def test_version_before_is_known_to_redis_after_a_restart(
    folder: Path, redis: RedisProcess
) -> None:
    push(redis, folder / "one")
    push(redis, folder / "two")

    async def test(served: Served) -> None:
        assert await score(served) == score_of(2)
        assert (await served.client.post("/v1/versions/rollback")).status_code == 200
        assert await score(served) == score_of(1)

    run(folder, redis, test)


def test_version_without_its_rows_is_not_switched_to(folder: Path, redis: RedisProcess) -> None:
    push(redis, folder / "one")
    digest = read_manifest(folder / "two").digest
    server = RedisServer(redis.url)
    # The state left by a push that was killed halfway.
    server.client.hset(RedisVersions(server).rows_key(digest, "ads"), b"\0" * 8, b"\0" * 4)

    async def test(served: Served) -> None:
        answer = await served.client.post("/v1/versions/active", json={"version": "two"})
        assert error_of(answer) == (503, "rows_unavailable")
        assert await score(served) == score_of(1)

    run(folder, redis, test)
    server.close()


def test_active_version_that_is_not_here_is_waited_for(folder: Path, redis: RedisProcess) -> None:
    elsewhere = telling(folder.parent / "three", 3)
    push(redis, folder / "one")

    async def test(served: Served) -> None:
        await asyncio.to_thread(push, redis, elsewhere)

        async def fails() -> bool:
            return served.service.models.failure is not None

        await until(fails)
        assert await score(served) == score_of(1)
        elsewhere.rename(folder / "three")
        await until_score(served, score_of(3))
        assert served.service.models.failure is None

    run(folder, redis, test)


def test_version_whose_rows_were_deleted_is_not_gone_back_to(
    folder: Path, redis: RedisProcess
) -> None:
    push(redis, folder / "one")

    async def test(served: Served) -> None:
        await asyncio.to_thread(push, redis, folder / "two")
        await until_score(served, score_of(2))
        server = RedisServer(redis.url)
        one = read_manifest(folder / "one").digest
        await asyncio.to_thread(RedisVersions(server).delete, one)
        for path, body in (("rollback", None), ("active", {"version": "one"})):
            answer = await served.client.post(f"/v1/versions/{path}", json=body)
            assert error_of(answer) == (503, "rows_unavailable")
            assert await score(served) == score_of(2)
        server.close()

    run(folder, redis, test, cache_bytes=0)
