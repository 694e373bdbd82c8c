"""A model's versions in Redis: which are complete, and which one to serve.

Layout, under the model's prefix (docs/row_stores.md):

    versions            hash: digest -> fields of `PushedVersion`, for complete versions only
    active              the digest of the version to serve
    history             list: previously active versions, latest first
    <digest>:manifest   manifest.json of the export
    <digest>:loading    who is pushing the version; expires unless it is renewed
    <digest>:rows:<table>   hash: key -> row, and `complete` -> number of rows, written last
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from sparsefleet.errors import (
    CheckpointMissingError,
    ConfigError,
    CorruptFileError,
    StoreUnavailableError,
)
from sparsefleet.serving.export.manifest import ExportManifest
from sparsefleet.serving.updates import RedisServer

__all__ = ["COMPLETE", "PushedVersion", "RedisVersions"]

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
        """Find a version by digest or label. Raises CheckpointMissingError listing all versions."""
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
            raise self.gone(manifest.digest, "it is not among its versions")
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
            f"no previously active version is left in {self._server.where}; activate one of "
            f"{', '.join(there) or 'none'} by name"
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
