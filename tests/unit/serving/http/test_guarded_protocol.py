"""Connections whose other end neither sends nor reads are ended."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import anyio
import uvicorn

from sparsefleet.serving.http.connections import Connections, guarded_protocol

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
