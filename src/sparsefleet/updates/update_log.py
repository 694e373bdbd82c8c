"""Where updates are kept on their way from a trainer to services."""

from __future__ import annotations

import os
from typing import Protocol

from sparsefleet.updates.redis_server import RedisServer, is_redis
from sparsefleet.updates.update_name import UpdateName

__all__ = ["UpdateLog", "open_log"]


class UpdateLog(Protocol):
    """The updates of one export. One publishes, any number read. Thread-safe.

    An update is there wholly or not at all.
    """

    @property
    def where(self) -> str:
        """For messages."""

    def names(self) -> list[UpdateName]:
        """What is there, in no order. StoreUnavailableError where it cannot be asked."""

    def read(self, name: UpdateName) -> bytes:
        """NotFoundError for one that is gone."""

    def hold(self) -> None:
        """From now on this object publishes, and no other may. PublishError if one does."""

    def append(self, name: UpdateName, raw: bytes) -> None:
        """Adds an update; PublishError if another has begun to publish."""

    def remove(self, names: list[UpdateName]) -> None:
        """Old ones that nobody needs; PublishError as `append`."""

    def close(self) -> None:
        """Lets another publish, and frees what it holds."""


def open_log(target: str | os.PathLike[str], version: str) -> UpdateLog:
    """The log of updates to the export `version` in a directory, or in Redis."""
    from sparsefleet.updates.folder_log import FolderLog
    from sparsefleet.updates.redis_log import RedisLog

    if is_redis(target):
        return RedisLog(RedisServer(str(target)), version)
    return FolderLog(target, version)
