"""Calls of a service's HTTP interface: JSON and Arrow, each within a deadline."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import pyarrow as pa

from sparsefleet.errors import AuthError, DeadlineError, FeedError, PeerLostError, ProtocolError

__all__ = ["ServiceClient"]

_ARROW = "application/vnd.apache.arrow.stream"
_JSON = "application/json"
_LATER = (429, 503, 504)
"""Answers after which it may be tried again: a service is busy, or loads what it never needed."""
_PAUSE_S = 0.25


class ServiceClient:
    """One service. Raises RpcError if it does not answer, FeedError if it refuses what was sent.

    timeout_s: of one call, with all its tries.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s

    def get(self, path: str) -> dict[str, Any]:
        return self._object(path, self._ask(path, None, _JSON))

    def post_json(self, path: str, content: Any) -> dict[str, Any]:
        try:
            body = json.dumps(content, allow_nan=False).encode()
        except ValueError as error:
            raise FeedError(f"JSON has no NaN and no infinity: {error}") from error
        return self._object(path, self._ask(path, body, _JSON))

    def post_for_table(self, path: str, content: Any) -> pa.Table:
        """Sends JSON, or a table; gets a table."""
        if isinstance(content, pa.Table):
            return self._table(path, self._ask(path, _stream(content), _ARROW))
        return self._table(path, self._ask(path, json.dumps(content).encode(), _JSON))

    def _ask(self, path: str, body: bytes | None, form: str) -> bytes:
        headers = {} if body is None else {"Content-Type": form}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self.url + path, body, headers)
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._exchange(path, request, deadline)
            except urllib.error.HTTPError as error:
                with error:
                    said = _said(error.read())
                if error.code not in _LATER or time.monotonic() + _PAUSE_S > deadline:
                    raise self._refused(path, error.code, said) from None
                time.sleep(_PAUSE_S)

    def _exchange(self, path: str, request: urllib.request.Request, deadline: float) -> bytes:
        left_s = max(deadline - time.monotonic(), 0.001)
        try:
            with urllib.request.urlopen(request, timeout=left_s) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError:
            raise
        except TimeoutError as error:
            raise self._late(path) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._late(path) from error
            raise PeerLostError(f"{self.url} cannot be reached: {error.reason}") from error
        except OSError as error:
            raise PeerLostError(f"{self.url}{path}: the connection broke: {error}") from error

    def _late(self, path: str) -> DeadlineError:
        return DeadlineError(f"{self.url}{path} did not answer within {self._timeout_s:g} s")

    def _refused(self, path: str, status: int, said: str) -> Exception:
        message = f"{self.url}{path} answered {status}: {said}"
        if status == 401:
            return AuthError(f"{message}; give its token")
        if status in (400, 413, 422):
            return FeedError(message)
        return PeerLostError(message) if status >= 500 else ProtocolError(message)

    def _object(self, path: str, raw: bytes) -> dict[str, Any]:
        try:
            content = json.loads(raw)
        except ValueError as error:
            raise ProtocolError(f"{self.url}{path} answered no JSON: {error}") from error
        if not isinstance(content, dict):
            raise ProtocolError(f"{self.url}{path} answered a {type(content).__name__}")
        return content

    def _table(self, path: str, raw: bytes) -> pa.Table:
        try:
            with pa.ipc.open_stream(pa.py_buffer(raw)) as reader:
                return reader.read_all()
        except (pa.ArrowException, OSError) as error:
            raise ProtocolError(f"{self.url}{path} answered no Arrow stream: {error}") from error


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    raw: bytes = sink.getvalue().to_pybytes()
    return raw


def _said(raw: bytes) -> str:
    try:
        return str(json.loads(raw)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return raw[:200].decode("utf-8", "replace")
