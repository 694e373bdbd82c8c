"""The clients of bench/serving.py, in a separate process: each sends a request repeatedly.

    python bench/serving_load.py HOST PORT BODY_FILE CONTENT_TYPE --clients 16 --seconds 5

Prints one line of JSON: seconds, requests, errors, and latencies in ms at some quantiles.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

ERRORS_KEPT = 3


async def client(
    options: argparse.Namespace, request: bytes, end: float, taken: list[float]
) -> list[str]:
    """Send requests until `end`, one after another over one connection; return the errors."""
    errors = []
    reader, writer = await asyncio.open_connection(options.host, options.port)
    while time.perf_counter() < end:
        begin = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        taken.append(time.perf_counter() - begin)
        if not head.startswith(b"HTTP/1.1 200"):
            errors.append((head + body).decode()[:500])
    writer.close()
    return errors


async def load(options: argparse.Namespace) -> dict[str, object]:
    body = options.body.read_bytes()
    head = (
        f"POST /v1/predict HTTP/1.1\r\nHost: {options.host}\r\nContent-Type: {options.kind}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    taken: list[float] = []
    begin = time.perf_counter()
    running = [
        client(options, head.encode() + body, begin + options.seconds, taken)
        for _ in range(options.clients)
    ]
    errors = [text for found in await asyncio.gather(*running) for text in found]
    seconds = time.perf_counter() - begin
    taken.sort()
    return {
        "seconds": seconds,
        "requests": len(taken),
        "errors": len(errors),
        "first_errors": errors[:ERRORS_KEPT],
        "p50_ms": 1000 * taken[len(taken) // 2],
        "p99_ms": 1000 * taken[min(len(taken) - 1, int(0.99 * len(taken)))],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("body", type=Path)
    parser.add_argument("kind")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    print(json.dumps(asyncio.run(load(parser.parse_args()))))


if __name__ == "__main__":
    main()
