"""An OpenTelemetry collector for tests: an HTTP server that decodes what is pushed to it."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)


class OtlpCollector:
    """Listens on a free port of this machine until it is closed."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.paths: set[str] = set()
        self.headers: dict[str, str] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                outer.paths.add(self.path)
                outer.headers = dict(self.headers.items())
                outer.requests.append(ExportMetricsServiceRequest.FromString(body))
                answer = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def metrics(self) -> dict[str, Any]:
        """The metrics of the last push, by name."""
        found: dict[str, Any] = {}
        for resource in self.requests[-1].resource_metrics if self.requests else ():
            for scope in resource.scope_metrics:
                found.update({metric.name: metric for metric in scope.metrics})
        return found

    def resource(self) -> dict[str, str]:
        attributes = self.requests[-1].resource_metrics[0].resource.attributes
        return {each.key: each.value.string_value for each in attributes}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


def labels_of(point: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in point.attributes}
