"""A model's versions and rows in Redis, loaded there by `push_rows`.

In shapes, U is the number of distinct keys, D the row width.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import (
    CheckpointMissingError,
    ConfigError,
    CorruptFileError,
    StoreUnavailableError,
)
from sparsefleet.serving.export.keyed_rows import KeyedRows, Tables
from sparsefleet.serving.export.manifest import ExportedTable, ExportManifest
from sparsefleet.serving.export.quantization import EncodedRows, decode_rows
from sparsefleet.serving.row_stores.row_cache import FetchedTable, RowCache, distinct_keys
from sparsefleet.serving.updates import RedisServer
from sparsefleet.store.arrays import Floats, Keys

__all__ = [
    "COMPLETE",
    "PushedVersion",
    "RedisRows",
    "RedisVersions",
    "keys_to_bytes",
    "row_size",
    "rows_to_bytes",
]

# A model's versions in Redis: which are complete, and which one to serve.
#
# Layout, under the model's prefix (docs/row_stores.md):
#
#     versions            hash: digest -> fields of `PushedVersion`, for complete versions only
#     active              the digest of the version to serve
#     history             list: previously active versions, latest first
#     <digest>:manifest   manifest.json of the export
#     <digest>:loading    who is pushing the version; expires unless it is renewed
#     <digest>:rows:<table>   hash: key -> row, and `complete` -> number of rows, written last

COMPLETE = b"complete"
"""The field that marks a table's hash as complete. Redis evicts, expires and loses only entire
keys, so a hash with this field has all its rows.
"""

_KEPT_HISTORY = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class PushedVersion:
    """A version whose rows are all in Redis."""

    digest: str
    """`ExportManifest.digest` of its export."""
    label: str
    """Human-readable name; empty if there is none."""
    created: str
    """When the export was written."""
    pushed: float
    """When it was pushed, in seconds since 1970."""
    rows: int


class RedisVersions:
    """The versions of one model. Raises StoreUnavailableError if Redis fails. Thread-safe."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._list = server.key("versions")
        self._active = server.key("active")
        self._history = server.key("history")

    def all(self) -> list[PushedVersion]:
        """Return the complete versions, newest first."""
        with self._server.asking("versions cannot be listed"):
            found = self._server.client.hgetall(self._list)
        try:
            versions = [PushedVersion(**json.loads(raw)) for raw in found.values()]
        except (ValueError, TypeError, RecursionError) as error:
            raise CorruptFileError(
                f"Redis at {self._server.where} lists a version that cannot be read ({error}): it "
                f"was written by a newer sparsefleet, or something else writes to {self._list}"
            ) from error
        return sorted(versions, key=lambda version: version.pushed, reverse=True)

    def active(self) -> str | None:
        """Return the digest of the version to serve, or None if none was activated."""
        with self._server.asking("the active version cannot be read"):
            found = self._server.client.get(self._active)
        return None if found is None else found.decode()

    def find(self, version: str) -> PushedVersion:
        """Find a version by digest or label; if it is missing, the error lists all versions."""
        there = self.all()
        for each in there:
            if version in (each.digest, each.label):
                return each
        known = ", ".join(each.label or each.digest for each in there) or "none"
        raise CheckpointMissingError(
            f"Redis at {self._server.where} has no complete version '{version}'; it has {known}; "
            "push it with `sparsefleet push-rows`"
        )

    def manifest(self, digest: str) -> ExportManifest:
        """Return the manifest of the export that this version was pushed from."""
        with self._server.asking(f"the manifest of version {digest} cannot be read"):
            found = self._server.client.get(self._server.key(digest, "manifest"))
        if found is None:
            raise CheckpointMissingError(
                f"Redis at {self._server.where} has no version {digest}; push it with `sparsefleet "
                "push-rows`"
            )
        return ExportManifest.from_json(found.decode(), f"the manifest in {self._server.where}")

    def check(self, manifest: ExportManifest) -> None:
        """Raise StoreUnavailableError unless all rows of the version are present."""
        with self._server.asking(f"version {manifest.digest} cannot be read"):
            with self._server.client.pipeline(transaction=False) as asked:
                asked.hexists(self._list, manifest.digest)
                for entry in manifest.tables:
                    asked.hget(self.rows_key(manifest.digest, entry.name), COMPLETE)
                listed, *complete = asked.execute()
        if not listed:
            raise self.gone(manifest.digest, "it is not in the list of versions")
        for entry, count in zip(manifest.tables, complete, strict=True):
            if count is None or int(count) != entry.rows:
                raise self.gone(manifest.digest, f"the rows of table '{entry.name}' are missing")

    def gone(self, digest: str, why: str) -> StoreUnavailableError:
        """Return the error for a version whose rows are missing from Redis."""
        return StoreUnavailableError(
            f"Redis at {self._server.where} does not have all rows of version {digest}: {why}. It "
            "was restarted without its data, or it evicts keys, or the version was deleted; push "
            "it with `sparsefleet push-rows`"
        )

    def list_whole(self, manifest: ExportManifest, version: PushedVersion) -> None:
        """Add a complete version to the list, so that it can be served. Used by `push_rows`."""
        with self._server.client.pipeline() as steps:
            steps.set(self._server.key(version.digest, "manifest"), manifest.to_json())
            steps.hset(self._list, version.digest, json.dumps(asdict(version)))
            steps.delete(self._server.key(version.digest, "loading"))
            steps.execute()

    def activate(self, version: str) -> PushedVersion:
        """Make this the version to serve, for all services at once."""
        found = self.find(version)
        self.check(self.manifest(found.digest))
        with self._server.asking(f"version {found.digest} cannot be activated"):
            self._switch(found.digest, forget=0)
        return found

    def previous(self) -> str | None:
        """Return the digest of the previously active version that still exists."""
        return next((digest for _, digest in self._before()), None)

    def rollback(self) -> PushedVersion:
        """Activate the previously active version, skipping deleted ones."""
        there = {version.digest: version for version in self.all()}
        for place, digest in self._before():
            self.check(self.manifest(digest))
            with self._server.asking(f"version {digest} cannot be activated"):
                self._switch(digest, forget=place + 1)
            return there[digest]
        raise CheckpointMissingError(
            f"no previously active version is left in {self._server.where}; activate a "
            f"version by name (available: {', '.join(there) or 'none'})"
        )

    def delete(self, version: str) -> PushedVersion:
        """Delete a version and its updates; the active version cannot be deleted."""
        found = self.find(version)
        if found.digest == self.active():
            raise ConfigError(
                f"version {found.label or found.digest} is active; activate a different one before "
                "deleting it"
            )
        with self._server.asking(f"version {found.digest} cannot be deleted"):
            self._server.client.hdel(self._list, found.digest)
            self.remove_keys(found.digest, "*")
        return found

    def remove_keys(self, digest: str, which: str) -> None:
        """Remove the keys of an unlisted version; `which` may contain wildcards."""
        pattern = self._server.key(digest, which)
        for key in self._server.client.scan_iter(match=pattern, count=1000):
            self._server.client.unlink(key)

    def rows_key(self, digest: str, table: str) -> str:
        """Return the key that holds the rows of a table."""
        return self._server.key(digest, "rows", table)

    def _before(self) -> list[tuple[int, str]]:
        """Return the history entries that can be restored, with their positions."""
        with self._server.asking("previously active versions cannot be read"):
            before = [raw.decode() for raw in self._server.client.lrange(self._history, 0, -1)]
        there, active = {version.digest for version in self.all()}, self.active()
        return [
            (place, digest)
            for place, digest in enumerate(before)
            if digest in there and digest != active
        ]

    def _switch(self, digest: str, *, forget: int) -> None:
        """Activate a version in one transaction, so that concurrent calls lose no history entry."""

        def switch(steps: Any) -> None:

            before = steps.get(self._active)
            steps.multi()
            if forget:
                steps.ltrim(self._history, forget, -1)
            elif before is not None and before.decode() != digest:
                steps.lpush(self._history, before)
                steps.ltrim(self._history, 0, _KEPT_HISTORY - 1)
            steps.set(self._active, digest)

        self._server.client.transaction(switch, self._active, self._history)


_CHUNK_KEYS = 4096  # keys per command, so that Redis can serve other clients in between

Ids = Mapping[str, NDArray[np.int64]]


class RedisRows:
    """A `RowStore` in Redis that serves one version with one round trip per prediction.

    Fetched rows are cached in this process up to a limit; they belong to the version and never
    change. Every round trip checks that the version still exists. If Redis was restarted empty,
    evicts keys or has lost the version, the rows are unavailable; they are never replaced by zeros.

    url: as for `RedisServer`.
    manifest: the manifest of the export to serve; None means the manifest that Redis has for
        `version`.
    version: digest or label; None means the active version.
    cache_bytes: limit on the rows cached here.
    timeout_s: limit on one round trip; within it, a broken connection is replaced once.
    """

    def __init__(
        self,
        url: str,
        *,
        manifest: ExportManifest | None = None,
        version: str | None = None,
        cache_bytes: int = 256 << 20,
        timeout_s: float = 1.0,
    ) -> None:
        if not isinstance(cache_bytes, int) or cache_bytes < 0:
            raise ConfigError(f"cache_bytes must be an int >= 0, got {cache_bytes!r}")
        self._server = RedisServer(url, timeout_s=timeout_s)
        self._versions = RedisVersions(self._server)
        try:
            self.manifest = manifest or self._manifest_there(version)
        except BaseException:
            self._server.close()
            raise
        self.version = self.manifest.digest
        entries = self.manifest.tables
        sizes = {entry.name: entry.rows * row_size(entry) for entry in entries}
        total = max(1, sum(sizes.values()))
        self._tables = {
            entry.name: _RedisTable(self, entry, cache_bytes * sizes[entry.name] // total)
            for entry in entries
        }

    def tables(self, ids: Ids | None = None) -> Tables:
        if not ids:
            return self._tables
        wanted = {name: distinct_keys(part) for name, part in ids.items()}
        found = self._fetch(wanted)
        return {
            name: table if name not in found else FetchedTable(table, wanted[name], *found[name])
            for name, table in self._tables.items()
        }

    def freshness(self) -> float | None:
        return None

    def check(self) -> None:
        self._versions.check(self.manifest)

    def close(self) -> None:
        self._server.close()

    @property
    def cache_hits(self) -> int:
        """Return how many of the requested keys were found in this process's cache."""
        return sum(table.cache.hits for table in self._tables.values())

    def find(self, table: str, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        """Find rows of one table; see `KeyedRows.find`."""
        return self._fetch({table: keys})[table]

    def _fetch(self, wanted: Mapping[str, Keys]) -> dict[str, tuple[Floats, NDArray[np.bool_]]]:
        """Return rows of distinct keys by table, fetching all uncached rows in one round trip."""
        found, asked = {}, {}
        for name, keys in wanted.items():
            rows, known, missing = self._tables[name].cache.get(keys)
            found[name] = (rows, known)
            if len(missing):
                asked[name] = missing
        answers = self._ask([(name, wanted[name][missing]) for name, missing in asked.items()])
        for (name, missing), answer in zip(asked.items(), answers, strict=True):
            table, keys = self._tables[name], wanted[name][missing]
            rows, known = _rows_from_bytes(table.entry, keys, answer)
            table.cache.put(keys, rows, known)
            found[name][0][missing], found[name][1][missing] = rows, known
        return found

    def _ask(self, wanted: list[tuple[str, Keys]]) -> list[list[bytes | None]]:
        """Return the values that Redis has for these keys, table by table."""
        if not wanted:
            return []
        commands = [
            (place, self._versions.rows_key(self.version, name), keys[at : at + _CHUNK_KEYS])
            for place, (name, keys) in enumerate(wanted)
            for at in range(0, len(keys), _CHUNK_KEYS)
        ]
        answers: list[list[bytes | None]] = [[] for _ in wanted]
        with self._server.asking("rows cannot be fetched"):
            for (place, _, _), (complete, *rows) in zip(
                commands, self._exchange(commands), strict=True
            ):
                if complete is None:
                    raise self._versions.gone(
                        self.version, f"the rows of table '{wanted[place][0]}' are missing"
                    )
                answers[place] += rows
        return answers

    def _exchange(self, commands: list[tuple[int, str, Keys]]) -> list[list[bytes | None]]:
        from redis import exceptions

        begun = time.monotonic()
        for is_last in (False, True):
            with self._server.client.pipeline(transaction=False) as asked:
                for _, key, keys in commands:
                    asked.hmget(key, [COMPLETE, *keys_to_bytes(keys)])
                try:
                    answer: list[list[bytes | None]] = asked.execute()
                    return answer
                except exceptions.BusyLoadingError:
                    raise
                except (
                    exceptions.ConnectionError
                ):  # Redis may have closed the connection, so try a new one
                    if is_last or time.monotonic() - begun > self._server.timeout_s / 2:
                        raise
        raise AssertionError

    def _manifest_there(self, version: str | None) -> ExportManifest:
        if version is not None:
            return self._versions.manifest(self._versions.find(version).digest)
        digest = self._versions.active()
        if digest is None:
            raise CheckpointMissingError(
                f"no version is active in Redis at {self._server.where}; push a version with "
                "`sparsefleet push-rows MODEL_DIR redis://... --activate`"
            )
        return self._versions.manifest(digest)


class _RedisTable(KeyedRows):
    """A table whose rows are fetched on demand."""

    def __init__(self, store: RedisRows, entry: ExportedTable, cache_bytes: int) -> None:
        super().__init__(entry)
        self._store = store
        self.cache = RowCache(dim=entry.dim, max_bytes=cache_bytes, max_rows=entry.rows)

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        return self._store.find(self.entry.name, keys)


def row_size(entry: ExportedTable) -> int:
    """Return the number of bytes in a row."""
    scale = 4 if entry.format == "int8" else 0
    return scale + entry.dim * np.dtype(entry.format).itemsize


def keys_to_bytes(keys: Keys) -> list[bytes]:
    """Return each key as 8 little-endian bytes.

    >>> keys_to_bytes(np.array([1, 256], np.uint64))
    [b'\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00', b'\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00']
    """
    return _cut(keys.astype("<u8").tobytes(), 8)


def rows_to_bytes(rows: EncodedRows) -> list[bytes]:
    """Return each of the N rows as bytes."""
    values = np.ascontiguousarray(rows.values.astype(rows.values.dtype.newbyteorder("<")))
    raw = values.view(np.uint8).reshape(len(values), -1)
    if rows.scales is not None:
        scales = np.ascontiguousarray(rows.scales.astype("<f4")).view(np.uint8)
        raw = np.concatenate([scales.reshape(len(values), 4), raw], axis=1)
    return _cut(raw.tobytes(), raw.shape[1])


def _rows_from_bytes(
    entry: ExportedTable, keys: Keys, found: Sequence[bytes | None]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Decode rows to float32[N, D], with zeros for missing rows; also return which rows exist."""
    size = row_size(entry)
    known = np.array([row is not None for row in found], np.bool_)
    there = [row for row in found if row is not None]
    if any(len(row) != size for row in there):
        _raise_wrong_size(entry, keys, found, size)
    raw = b"".join(there)
    rows = np.zeros((len(found), entry.dim), np.float32)
    split = np.frombuffer(raw, np.uint8).reshape(-1, size)
    begin = 4 if entry.format == "int8" else 0
    dtype = np.dtype(entry.format).newbyteorder("<")
    values = np.ascontiguousarray(split[:, begin:]).view(dtype)
    scales = np.ascontiguousarray(split[:, :begin]).view("<f4").reshape(-1) if begin else None
    rows[known] = decode_rows(EncodedRows(values, scales))
    return rows, known


def _raise_wrong_size(
    entry: ExportedTable, keys: Keys, found: Sequence[bytes | None], size: int
) -> None:
    for key, row in zip(keys, found, strict=True):
        if row is not None and len(row) != size:
            raise CorruptFileError(
                f"table '{entry.name}': the row of key {int(key)} has {len(row)} bytes in Redis, "
                f"expected {size}; push the version again"
            )


def _cut(raw: bytes, size: int) -> list[bytes]:
    return [raw[at : at + size] for at in range(0, len(raw), size)]
