"""Open a row store from a string such as a URL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import ConfigError
from sparsefleet.serving.export.manifest import ExportManifest
from sparsefleet.serving.row_stores.redis_rows import RedisRows
from sparsefleet.serving.row_stores.server_rows import ServerRows
from sparsefleet.serving.row_stores.updated_rows import UpdatedRows
from sparsefleet.serving.updates import is_redis

if TYPE_CHECKING:
    from sparsefleet.serving.row_stores.row_store import RowStore

__all__ = ["open_rows"]


def open_rows(
    directory: str | os.PathLike[str],
    manifest: ExportManifest,
    *,
    rows: str | None = None,
    updates: str | os.PathLike[str] | None = None,
    cache_bytes: int = 256 << 20,
    timeout_s: float = 1.0,
) -> RowStore:
    """Open the rows of the export in `directory`.

    rows: None for the export's own files, `redis://host:port/database?model=NAME` for Redis, or
        "host:port,host:port" for a training job's servers.
    updates: the directory or Redis that a trainer publishes to. If None, updates
        are read from the Redis that holds the rows; without Redis, there are no updates.

    For cache_bytes and timeout_s, see `RedisRows`.
    """
    from sparsefleet.serving.row_stores.row_store import FileRows

    base: RowStore
    if rows is None:
        base = FileRows(directory, manifest=manifest)
    elif is_redis(rows):
        base = RedisRows(rows, manifest=manifest, cache_bytes=cache_bytes, timeout_s=timeout_s)
        updates = rows if updates is None else updates
    else:
        endpoints = [part for part in rows.split(",") if part]
        for endpoint in endpoints:
            parse_endpoint(endpoint)
        base = ServerRows(endpoints, manifest=manifest, timeout_s=timeout_s)
        if updates is not None:
            raise ConfigError(
                f"the rows on the servers {rows} are always current, so updates from "
                f"{os.fspath(updates)} would be older; omit the updates"
            )
    return base if updates is None else UpdatedRows(base, updates, manifest=manifest)
