"""The versions of a model that can be served, and which one is active."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple, Protocol

from sparsefleet.errors import CheckpointError, ConfigError, CorruptFileError, NotFoundError
from sparsefleet.serving.export.export_directory import read_manifest
from sparsefleet.serving.export.manifest import MANIFEST
from sparsefleet.serving.row_stores import RedisVersions
from sparsefleet.serving.updates import RedisServer, is_redis

__all__ = ["Catalogue", "Choice", "Version", "find", "open_catalogue"]


class Version(NamedTuple):
    """One exported version in the catalogue."""

    name: str
    digest: str
    directory: Path
    created: str


class Choice(NamedTuple):
    """The version to serve, and the previous one."""

    active: str
    digest: str
    """Digest of the active version."""
    previous: str | None


class Catalogue(Protocol):
    """The versions by name, with a record of the chosen one. Thread-safe."""

    def versions(self) -> list[Version]:
        """Return all readable versions, oldest first."""

    def chosen(self) -> str | None:
        """Return the chosen version, or None. Other services may change it at any time."""

    def choose(self, choice: Choice) -> str | None:
        """Record the choice for all services that share the catalogue, and for restarts.

        Returns the new value of `chosen`, or None if it is unchanged.
        """

    def previous(self) -> str | None:
        """Return the previously served version, if known."""


_NOTE = "active.json"


def open_catalogue(path: Path, rows: str = "") -> Catalogue:
    """Open the catalogue for an export or a folder of exports.

    Raises CheckpointError if `path` is neither.

    rows: where the rows are, see `open_rows`. If they are in Redis, Redis also records the active
        version for all services that read from it.
    """
    local = _local_catalogue(path)
    return _RedisCatalogue(local, rows) if is_redis(rows) else local


def _local_catalogue(path: Path) -> Catalogue:
    if (path / MANIFEST).exists():
        return _OneExport(path)
    folder = _Folder(path)
    if not path.is_dir() or not folder.versions():
        raise CheckpointError(
            f"{path} contains no exported model, because neither it nor a folder in it has a "
            f"{MANIFEST}; write one with Trainer.export or save_inference_model"
        )
    return folder


def find(catalogue: Catalogue, wanted: str) -> Version:
    """Return the version with that name or digest.

    Raises a NotFoundError that lists all versions.
    """
    versions = catalogue.versions()
    for version in reversed(versions):
        if wanted in (version.name, version.digest):
            return version
    known = ", ".join(f"{version.name} ({version.digest})" for version in versions)
    raise NotFoundError(f"there is no version {wanted!r:.80}; the versions are {known or 'none'}")


class _OneExport:
    """The catalogue of a single export directory, which each new version overwrites."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def versions(self) -> list[Version]:
        return [_version(self._path)]

    def chosen(self) -> str | None:
        return self.versions()[0].digest

    def choose(self, choice: Choice) -> None:
        """Do nothing, since the directory contains only one version."""
        del choice

    def previous(self) -> str | None:
        return None


class _Folder:
    """The catalogue of a folder with one directory per version; a file names the active one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def versions(self) -> list[Version]:
        found = []
        for directory in sorted(self._path.iterdir()) if self._path.is_dir() else []:
            if not directory.name.startswith(".") and (directory / MANIFEST).exists():
                try:
                    found.append(_version(directory))
                except CheckpointError:
                    continue  # reported when it is chosen
        return sorted(found, key=lambda version: (version.created, version.name))

    def chosen(self) -> str | None:
        note = self._read()
        return note.active if note else None

    def previous(self) -> str | None:
        note = self._read()
        return note.previous if note else None

    def choose(self, choice: Choice) -> str:
        path = self._path / _NOTE
        partial = path.with_name(f".{_NOTE}.{os.getpid()}")
        text = json.dumps({"active": choice.active, "previous": choice.previous}) + "\n"
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written: {error}; the version was not switched, because other "
                "services that share the folder would not switch"
            ) from error
        return choice.active

    def _read(self) -> Choice | None:
        path = self._path / _NOTE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return Choice(str(content["active"]), "", content.get("previous"))
        except FileNotFoundError:
            return None
        except (
            *(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError),
        ) as error:
            raise CorruptFileError(
                f"{path} does not say which version is active: {error!r}; remove it, or write "
                '{"active": "NAME"}'
            ) from error


def _version(directory: Path) -> Version:
    manifest = read_manifest(directory)
    name = directory.resolve().name
    return Version(name, manifest.digest, directory, manifest.created)


_TIMEOUT_S = 5.0


class _RedisCatalogue:
    """Another catalogue's versions, with the active one recorded in Redis.

    `sparsefleet push-rows --activate` and `--rollback` change it, and so does switching a service.
    url: see `RedisServer`.
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
