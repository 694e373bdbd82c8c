"""The versions that can be served: one export, or a folder of them with a note of which is on."""

from __future__ import annotations

import json
import os
from pathlib import Path

from sparsefleet.errors import CheckpointError, ConfigError, CorruptFileError, NotFoundError
from sparsefleet.export.manifest import MANIFEST
from sparsefleet.export.opened_export import read_manifest
from sparsefleet.serve.http.redis_catalogue import RedisCatalogue
from sparsefleet.serve.http.version import Catalogue, Choice, Version
from sparsefleet.updates import is_redis

__all__ = ["find", "open_catalogue"]

_NOTE = "active.json"


def open_catalogue(path: Path, rows: str = "") -> Catalogue:
    """Of an export, or of a folder that holds some. Raises CheckpointError if it is neither.

    rows: where the rows are, as `open_rows` takes it: Redis says which version is on, to all
        services that read from it.
    """
    local = _local_catalogue(path)
    return RedisCatalogue(local, rows) if is_redis(rows) else local


def _local_catalogue(path: Path) -> Catalogue:
    if (path / MANIFEST).exists():
        return _OneExport(path)
    folder = _Folder(path)
    if not path.is_dir() or not folder.versions():
        raise CheckpointError(
            f"{path} holds no exported model: neither it nor a folder in it has a {MANIFEST}; "
            "write one with Trainer.export or save_inference_model"
        )
    return folder


def find(catalogue: Catalogue, wanted: str) -> Version:
    """The version of that name or digest. Raises NotFoundError naming those there are."""
    versions = catalogue.versions()
    for version in reversed(versions):
        if wanted in (version.name, version.digest):
            return version
    known = ", ".join(f"{version.name} ({version.digest})" for version in versions)
    raise NotFoundError(f"there is no version {wanted!r:.80}; there are {known or 'none'}")


class _OneExport:
    """A directory that is written over with each new version."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def versions(self) -> list[Version]:
        return [_version(self._path)]

    def chosen(self) -> str | None:
        return self.versions()[0].digest

    def choose(self, choice: Choice) -> None:
        """What is in the directory is its own note."""
        del choice

    def previous(self) -> str | None:
        return None


class _Folder:
    """A folder with a directory for each version, and a note which is on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def versions(self) -> list[Version]:
        found = []
        for directory in sorted(self._path.iterdir()) if self._path.is_dir() else []:
            if not directory.name.startswith(".") and (directory / MANIFEST).exists():
                try:
                    found.append(_version(directory))
                except CheckpointError:
                    continue  # told when it is chosen
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
                f"{path} cannot be written: {error}; nothing was switched: services that share the "
                "folder, and this one after a restart, would serve another version"
            ) from error
        return choice.active

    def _read(self) -> Choice | None:
        path = self._path / _NOTE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return Choice(str(content["active"]), "", content.get("previous"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptFileError(
                f"{path} does not say which version is active: {error!r}; remove it, or write "
                '{"active": "NAME"}'
            ) from error


def _version(directory: Path) -> Version:
    manifest = read_manifest(directory)
    name = directory.resolve().name
    return Version(name, manifest.digest, directory, manifest.created)
