"""Rows in Redis, where `push_rows` has put them.

Letters: U distinct keys, D row width.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import CheckpointMissingError, ConfigError
from sparsefleet.export.keyed_rows import KeyedRows
from sparsefleet.export.manifest import Manifest, TableEntry
from sparsefleet.export.row_source import Tables
from sparsefleet.serve.row_stores.fetched_table import FetchedTable, distinct_keys
from sparsefleet.serve.row_stores.redis_versions import COMPLETE, RedisVersions
from sparsefleet.serve.row_stores.row_bytes import keys_to_bytes, row_size, rows_from_bytes
from sparsefleet.serve.row_stores.row_cache import RowCache
from sparsefleet.store.arrays import Floats, Keys
from sparsefleet.updates import RedisServer

__all__ = ["RedisRows"]

_CHUNK_KEYS = 4096  # of one command: Redis answers others in between

Ids = Mapping[str, NDArray[np.int64]]


class RedisRows:
    """A `RowStore` in Redis: one version, fetched in one exchange a prediction.

    Rows that were fetched are kept in this process up to a limit; they belong to the version and
    never change. Whether the version is still there is seen in every exchange: a Redis that was
    restarted empty, evicts keys or has lost the version is unavailable, and never reads as zeros.

    url: as `RedisServer`.
    manifest: of the export to serve; None: as Redis has it, of `version`.
    version: digest or label; None: the active one.
    cache_bytes: of rows kept here.
    timeout_s: of one exchange; a broken connection is replaced once within it.
    """

    def __init__(
        self,
        url: str,
        *,
        manifest: Manifest | None = None,
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
        """Keys that were asked for and found in this process."""
        return sum(table.cache.hits for table in self._tables.values())

    @property
    def cache_misses(self) -> int:
        """Keys that were asked for and had to be fetched."""
        return sum(table.cache.misses for table in self._tables.values())

    def find(self, table: str, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        """As `KeyedRows`, of one table."""
        return self._fetch({table: keys})[table]

    def _fetch(self, wanted: Mapping[str, Keys]) -> dict[str, tuple[Floats, NDArray[np.bool_]]]:
        """Rows of distinct keys by table; those that are not cached come in one exchange."""
        found, asked = {}, {}
        for name, keys in wanted.items():
            rows, known, missing = self._tables[name].cache.get(keys)
            found[name] = (rows, known)
            if len(missing):
                asked[name] = missing
        answers = self._ask([(name, wanted[name][missing]) for name, missing in asked.items()])
        for (name, missing), answer in zip(asked.items(), answers, strict=True):
            table, keys = self._tables[name], wanted[name][missing]
            rows, known = rows_from_bytes(table.entry, keys, answer)
            table.cache.put(keys, rows, known)
            found[name][0][missing], found[name][1][missing] = rows, known
        return found

    def _ask(self, wanted: list[tuple[str, Keys]]) -> list[list[bytes | None]]:
        """What Redis has under these keys, table by table."""
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
                        self.version, f"the rows of table '{wanted[place][0]}' are not there"
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
                ):  # perhaps one that Redis closed: a new one is tried
                    if is_last or time.monotonic() - begun > self._server.timeout_s / 2:
                        raise
        raise AssertionError

    def _manifest_there(self, version: str | None) -> Manifest:
        if version is not None:
            return self._versions.manifest(self._versions.find(version).digest)
        digest = self._versions.active()
        if digest is None:
            raise CheckpointMissingError(
                f"no version is active in Redis at {self._server.where}: push one with "
                "`sparsefleet push-rows MODEL_DIR redis://... --activate`"
            )
        return self._versions.manifest(digest)


class _RedisTable(KeyedRows):
    """A table whose rows are fetched when they are asked for."""

    def __init__(self, store: RedisRows, entry: TableEntry, cache_bytes: int) -> None:
        super().__init__(entry)
        self._store = store
        self.cache = RowCache(dim=entry.dim, max_bytes=cache_bytes, max_rows=entry.rows)

    def find(self, keys: Keys) -> tuple[Floats, NDArray[np.bool_]]:
        return self._store.find(self.entry.name, keys)
