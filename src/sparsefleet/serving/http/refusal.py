"""Error responses, each with a status, a name for programs and a message for people."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response

from sparsefleet.errors import FeedError, SparseFleetError, StoreUnavailableError

__all__ = ["Refusal", "refusal_for"]


class Refusal(Exception):  # noqa: N818 - it is a response
    """An exception that ends a request with an error response."""

    def __init__(
        self, status: int, name: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.name = name
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """Return the response as JSON: {"error": {"name": ..., "message": ...}}."""
        content = {"error": {"name": self.name, "message": str(self)}}
        return Response(
            json.dumps(content), self.status, self.headers, media_type="application/json"
        )


def refusal_for(error: SparseFleetError) -> Refusal:
    """Return the error response for an exception that this package raises.

    >>> refusal_for(FeedError("input 'ad' is missing")).status
    422
    """
    if isinstance(error, FeedError):
        return Refusal(422, "inputs_do_not_fit", str(error))
    if isinstance(error, StoreUnavailableError):
        return Refusal(503, "rows_unavailable", str(error), {"Retry-After": "1"})
    return Refusal(500, "internal", f"{type(error).__name__}: {error}")
