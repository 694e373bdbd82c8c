"""A TCP proxy between workers and one server that can delay or hold back all traffic."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparsefleet.endpoint import parse_endpoint

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["FaultyProxies"]

_CHUNK_BYTES = 1 << 16
_CONNECT_S = 30.0
_RETRY_S = 0.05


class _Line:
    """How the proxy currently handles one server's traffic. Used only by the event loop."""

    def __init__(self, target: str) -> None:
        self.target = parse_endpoint(target)
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.delay_s = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect one client to the server, waiting if the server is not up yet or is restarting.

        Closing the connection instead would look like a server that rejects the client's key.
        """
        # asyncio logs a connection that is cancelled at the end as an error.
        with contextlib.suppress(asyncio.CancelledError), contextlib.closing(writer):
            there = await self._connect()
            if there is None:
                return
            with contextlib.closing(there[1]):
                ways = [self._pass(reader, there[1]), self._pass(there[0], writer)]
                tasks = [asyncio.ensure_future(way) for way in ways]
                # If one direction ends, both do, since none of our peers half-close.
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        deadline = time.monotonic() + _CONNECT_S
        while time.monotonic() < deadline:
            await self.is_open.wait()
            try:
                return await asyncio.open_connection(self.target.host, self.target.port)
            except OSError:
                await asyncio.sleep(_RETRY_S)
        return None

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self.is_open.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()


class FaultyProxies:
    """Runs a proxy in front of each of `targets` while open; `endpoints` has the same order.

    Everything passes unchanged until `partition` or `delay` is called. A partition holds back bytes
    and new connections, like a network that drops packets while the sender retries.
    """

    def __init__(self, targets: Sequence[str]) -> None:
        self.endpoints: list[str] = []
        self._targets = list(targets)
        self._lines: list[_Line] = []
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)

    def partition(self, server: int, is_on: bool) -> None:
        """Hold back all traffic to and from a server, or let it pass again."""
        event = self._lines[server].is_open
        self._loop.call_soon_threadsafe(event.clear if is_on else event.set)

    def delay(self, server: int, delay_s: float) -> None:
        """Delay each message to and from a server by `delay_s` seconds; 0 removes the delay."""
        self._loop.call_soon_threadsafe(setattr, self._lines[server], "delay_s", delay_s)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    async def _listen(self) -> None:
        for target in self._targets:
            line = _Line(target)
            server = await asyncio.start_server(line.serve, "127.0.0.1", 0)
            self._lines.append(line)
            self._servers.append(server)
            self.endpoints.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
