"""Exports on this machine whose rows are in Redis, which says which version is on."""

from __future__ import annotations

from sparsefleet.serve.http.version import Catalogue, Choice, Version
from sparsefleet.serve.row_stores import RedisVersions
from sparsefleet.updates import RedisServer

__all__ = ["RedisCatalogue"]

_TIMEOUT_S = 5.0


class RedisCatalogue:
    """Versions of another catalogue; `sparsefleet push-rows --activate` and `--rollback` choose
    among them, and so does a service that is told to switch.

    url: as `RedisServer`.
    """

    def __init__(self, local: Catalogue, url: str) -> None:
        self._local = local
        self._versions = RedisVersions(RedisServer(url, timeout_s=_TIMEOUT_S))

    def versions(self) -> list[Version]:
        return self._local.versions()

    def chosen(self) -> str | None:
        return self._versions.active() or self._local.chosen()

    def choose(self, choice: Choice) -> str:
        if self._versions.active() != choice.digest:
            self._versions.activate(choice.digest)
        return choice.digest

    def previous(self) -> str | None:
        return self._versions.previous()
