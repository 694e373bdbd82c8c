"""A real service in a thread, and a misbehaving gateway in front of it."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import uvicorn

from sparsefleet.serving.http import ServeConfig, make_app

WAIT_S = 30.0
ARROW = "application/vnd.apache.arrow.stream"

Rows = list[dict[str, Any]]


@contextmanager
def service(models: Path, **settings: Any) -> Iterator[str]:
    """Its URL."""
    app = make_app(ServeConfig(models=models, **settings))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on"))
    ready = threading.Event()
    begin = server.startup

    async def startup(sockets: Any = None) -> None:
        await begin(sockets)
        ready.set()

    server.startup = startup  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert ready.wait(WAIT_S), "the service does not start"
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(WAIT_S)


@contextmanager
def gateway(
    url: str,
    *,
    examples: Callable[[Rows], Rows] = lambda rows: rows,
    scores: Callable[[list[float]], list[float]] = lambda scores: scores,
) -> Iterator[str]:
    """A server in front of another: changes examples on the way in, and scores on the way out."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            self._pass_on(self.rfile.read(int(self.headers["Content-Length"])))

        def _pass_on(self, body: bytes | None) -> None:
            form = self.headers.get("Content-Type", "")
            if body is not None and self.path.startswith("/v1/predict"):
                body = _changed(body, form, examples)
            headers = {"Content-Type": form} if body is not None else {}
            request = urllib.request.Request(url + self.path, body, headers)
            try:
                with urllib.request.urlopen(request, timeout=WAIT_S) as found:
                    status, kind, answer = found.status, found.headers["Content-Type"], found.read()
            except urllib.error.HTTPError as error:
                status, kind, answer = error.code, error.headers["Content-Type"], error.read()
            if status == 200 and self.path.startswith("/v1/predict"):
                answer = _scored(answer, kind, scores)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(WAIT_S)


def _changed(body: bytes, form: str, change: Callable[[Rows], Rows]) -> bytes:
    if form != ARROW:
        return json.dumps({"examples": change(json.loads(body)["examples"])}).encode()
    table = pa.ipc.open_stream(body).read_all()
    changed = pa.Table.from_pylist(change(table.to_pylist()))
    return _stream(changed)


def _scored(answer: bytes, kind: str, change: Callable[[list[float]], list[float]]) -> bytes:
    if kind != ARROW:
        content = json.loads(answer)
        content["predictions"] = {k: change(v) for k, v in content["predictions"].items()}
        return json.dumps(content).encode()
    table = pa.ipc.open_stream(answer).read_all()
    columns = {
        name: pa.array(change(table.column(name).to_pylist())) for name in table.schema.names
    }
    return _stream(pa.table(columns))


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
