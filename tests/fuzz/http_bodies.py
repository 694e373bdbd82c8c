"""Bodies sent to the service: answered or refused by name, never with an internal error."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import AsyncExitStack
from typing import Any

import pyarrow as pa
from tests.fuzz.mutations import mutated_bytes, mutated_json
from tests.support.served_models import serving, shop_rows
from tests.unit.serving.export.shop_model import exported_shop

_JSON, _LINES, _CSV = "application/json", "application/x-ndjson", "text/csv"
_ARROW = "application/vnd.apache.arrow.stream"
_REFUSALS = (400, 404, 413, 415, 422, 429)


class HttpTarget:
    """Mutates bodies of /v1/predict in every format, and of /v1/rows.

    An input has three lines: the path, the content type and the body.
    """

    def __init__(self) -> None:
        self._rows = shop_rows(4)
        table = pa.Table.from_pylist(self._rows)
        csv = [",".join(self._rows[0])]
        csv += [",".join(" ".join(map(str, cell)) for cell in row.values()) for row in self._rows]
        self._bodies = {
            _JSON: json.dumps({"examples": self._rows}).encode(),
            _LINES: "\n".join(map(json.dumps, self._rows)).encode(),
            _CSV: "\n".join(csv).encode(),
            _ARROW: _as_stream(table),
        }
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._served = self._loop.run_until_complete(
            self._stack.enter_async_context(serving(exported_shop()[0], engine="torch"))
        )

    def make(self, draw: random.Random) -> bytes:
        kind, others = draw.choice(list(self._bodies)), list(self._bodies.values())
        path = f"/v1/predict?unknown={draw.randrange(2)}"
        if kind == _JSON and draw.random() < 0.2:
            path, content = "/v1/rows", {"table": "items", "keys": [1, 2, 2**64 - 1]}
            body = json.dumps(mutated_json(content, draw)).encode()
        elif kind in (_JSON, _LINES) and draw.random() < 0.6:
            rows: Any = mutated_json({"examples": self._rows}, draw)
            body = json.dumps(rows).encode()
            if kind == _LINES and isinstance(rows, dict) and isinstance(rows.get("examples"), list):
                body = "\n".join(map(json.dumps, rows["examples"])).encode()
        else:
            body = mutated_bytes(self._bodies[kind], draw, others)
        return f"{path}\n{kind}\n".encode() + body

    def run(self, raw: bytes) -> str:
        path, kind, body = raw.split(b"\n", 2)
        status, answer = self._loop.run_until_complete(
            self._post(path.decode(), kind.decode(), body)
        )
        if status == 200:
            return "predicted"
        error = json.loads(answer)["error"]
        assert status in _REFUSALS, f"{status}: {error}"
        assert error["name"], error
        assert error["message"], error
        return f"refused with {status}"

    async def _post(self, path: str, kind: str, body: bytes) -> tuple[int, bytes]:
        headers = {"content-type": kind}
        found = await self._served.client.post(path, content=body, headers=headers)
        return found.status_code, found.content


def _as_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    raw: bytes = sink.getvalue().to_pybytes()
    return raw
