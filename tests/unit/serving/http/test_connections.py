"""Which connection makes room for a new one."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
import uvicorn

from sparsefleet.serving.http.connections import (
    Connections,
    guarded_protocol,
    origin_of,
    within_descriptors,
)

HERE, THERE = "10.0.0.1", "10.0.0.2"


class FakeConnection:
    def __init__(self) -> None:
        self.is_receiving = False
        self.is_dropped = False

    def drop(self) -> None:
        self.is_dropped = True


def opened(connections: Connections, count: int, address: str = HERE) -> list[FakeConnection]:
    made = [FakeConnection() for _ in range(count)]
    for connection in made:
        assert connections.open(connection, address) is None
    return made


def test_the_one_that_was_idle_for_longest_makes_room() -> None:
    connections = Connections(3, 3)
    first, second, third = opened(connections, 3)
    connections.set_idle(first, False)
    connections.set_idle(first, True)  # it has sent a request since
    connections.set_idle(second, True)  # an incomplete header changes nothing
    opened(connections, 1)
    assert [one.is_dropped for one in (first, second, third)] == [False, True, False]
    assert len(connections) == 3
    assert connections.dropped == 1


def test_of_those_in_use_one_that_is_still_sending_makes_room_and_none_that_waits() -> None:
    connections = Connections(3, 3)
    busy = opened(connections, 3)
    for connection in busy:
        connections.set_idle(connection, False)
    refusal = connections.open(FakeConnection(), THERE)
    assert refusal is not None
    assert (refusal.status, refusal.name) == (503, "too_many_connections")
    busy[1].is_receiving = True
    opened(connections, 1, THERE)
    assert [one.is_dropped for one in busy] == [False, True, False]


def test_an_address_makes_room_only_among_its_own() -> None:
    connections = Connections(100, 2)
    mine, others = opened(connections, 2), opened(connections, 2, THERE)
    opened(connections, 1)
    assert [one.is_dropped for one in mine] == [True, False]
    assert not any(one.is_dropped for one in others)
    for connection in others:
        connections.set_idle(connection, False)
    refusal = connections.open(FakeConnection(), THERE)
    assert refusal is not None
    assert refusal.status == 429
    assert "--max-connections-per-address" in str(refusal)


def test_what_is_closed_is_forgotten() -> None:
    connections = Connections(2, 2)
    for connection in opened(connections, 2):
        connections.close(connection)
        connections.close(connection)
        connections.set_idle(connection, True)
    assert len(connections) == connections.dropped == 0
    opened(connections, 2)


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:0:1:aaaa::1", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:bbbb::2%eth0", "2001:db8:0:1::/64"),
        ("a.socket", "a.socket"),
        (None, ""),
    ],
)
def test_addresses_are_distinguished_by_owner(address: str | None, origin: str) -> None:
    assert origin_of(address) == origin


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_limit_of_descriptors_is_raised_as_far_as_is_needed(limits: tuple[int, int]) -> None:
    _, hard = limits
    if hard != resource.RLIM_INFINITY and hard < 1024:
        pytest.skip("the limit of this process cannot be raised")
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    assert within_descriptors(512) == 512
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512 + 128
    assert within_descriptors(100) == 100
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512 + 128


def test_fewer_connections_are_taken_where_descriptors_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    assert within_descriptors(1024) == 128
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    assert within_descriptors(1024) == 32
    infinite = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (infinite, infinite))
    assert within_descriptors(1024) == 1024


WAIT_S = 30.0


async def much(scope: Any, receive: Any, send: Any) -> None:
    del scope, receive
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * (32 << 20)})


def test_a_connection_whose_receiver_does_not_read_is_ended() -> None:
    protocol = guarded_protocol(WAIT_S, Connections(10, 10))
    protocol.unread_timeout_s = 0.1

    async def test() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(much, http=protocol, lifespan="off", log_config=None)
        )
        running = asyncio.create_task(server.serve(sockets=[listener]))
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: service\r\n\r\n")
            with anyio.fail_after(WAIT_S):
                while not server.server_state.total_requests:
                    await asyncio.sleep(0.01)
                while server.server_state.connections:
                    await asyncio.sleep(0.01)
        server.should_exit = True
        await running

    asyncio.run(test())
