"""Fixtures for tests that use a real Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.redis_process import RedisProcess

from sparsefleet.serving.updates import RedisServer


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path_factory.mktemp("redis")) as process:
        yield process


@pytest.fixture
def server(redis: RedisProcess) -> Iterator[RedisServer]:
    """Yield a connection to the module's Redis, emptied."""
    connected = RedisServer(redis.url)
    connected.client.flushall()
    yield connected
    connected.close()
