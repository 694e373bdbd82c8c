"""Metrics and the dashboard of a job: strangers cannot read them through a browser or block them.

A web page whose domain name points to 127.0.0.1 could read the metrics of a job, and 64 connections
that sent a byte now and then kept everybody else out.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from sparsefleet.monitor.http_server import HttpServer, Response


@pytest.fixture
def server() -> Iterator[HttpServer]:
    opened = HttpServer("127.0.0.1:0", {"/metrics": lambda _: Response(b"jobs 1\n")})
    yield opened
    opened.close()


def status_for(server: HttpServer, host: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.endpoint.port, timeout=20)
    try:
        connection.request("GET", "/metrics", headers={"Host": host})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("host", ["evil.test", "evil.test:9100", "127.0.0.1.evil.test", "a@[::1]"])
def test_other_host_names_are_refused_on_loopback(server: HttpServer, host: str) -> None:
    assert status_for(server, host) == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9100", "[::1]:9100", "job.localhost"])
def test_names_of_this_machine_are_served(server: HttpServer, host: str) -> None:
    assert status_for(server, host) == 200


def test_silent_connections_make_room_for_others(server: HttpServer) -> None:
    where = ("127.0.0.1", server.endpoint.port)
    silent = [socket.create_connection(where) for _ in range(100)]
    try:
        for one in silent:
            one.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        assert [status_for(server, "localhost") for _ in range(5)] == [200] * 5
    finally:
        for one in silent:
            one.close()


def test_connection_that_is_answered_is_not_dropped_for_others() -> None:
    others_came = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield b"first"
        others_came.wait(60)
        yield b"last"

    server = HttpServer("127.0.0.1:0", {"/stream": lambda _: Response(pieces())})
    where = ("127.0.0.1", server.endpoint.port)
    reader = socket.create_connection(where, timeout=60)
    reader.sendall(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    received = b""
    while not received.endswith(b"first"):
        received += reader.recv(4096)
    silent = [socket.create_connection(where) for _ in range(100)]
    try:
        assert status_for(server, "localhost") == 404
        others_came.set()
        while piece := reader.recv(4096):
            received += piece
        assert received.endswith(b"firstlast")
    finally:
        others_came.set()
        for one in (reader, *silent):
            one.close()
        server.close()
