"""A checkpoint that has been written, for reading."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from sparsefleet.checkpoint.clean_up import read_manifest
from sparsefleet.checkpoint.dense_file import read_dense
from sparsefleet.checkpoint.entries import FileEntry
from sparsefleet.checkpoint.folder import Folder, open_folder
from sparsefleet.checkpoint.manifest import Manifest
from sparsefleet.checkpoint.merged_rows import merged_rows
from sparsefleet.checkpoint.names import MANIFEST, step_of
from sparsefleet.checkpoint.row_chunk import COLUMNS, RowChunk
from sparsefleet.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointMissingError,
    ConfigError,
    CorruptFileError,
)

__all__ = ["Checkpoint"]


class Checkpoint:
    """Reads a checkpoint; a delta together with what it builds on.

    No row or tensor of a file is handed out before the file's checksum was found right; each
    file is checked once by an object. Thread-safe.

    Example: see `PendingCheckpoint`.
    """

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        """Use `open`."""
        self.folder = folder
        self.manifest = manifest
        self._right: set[str] = set()

    @classmethod
    def open(cls, path: str, storage_options: Mapping[str, Any] | None = None) -> Checkpoint:
        """Reads the manifest at a path or URL."""
        return cls.at(open_folder(path, storage_options))

    @classmethod
    def at(cls, folder: Folder) -> Checkpoint:
        """The same for a folder."""
        try:
            return cls(folder, read_manifest(folder))
        except CheckpointMissingError as error:
            raise CheckpointMissingError(
                f"{folder.root}: expected a checkpoint, found no {MANIFEST}{_series_hint(folder)}"
            ) from error

    @property
    def path(self) -> str:
        return self.folder.root

    @cached_property
    def base(self) -> Checkpoint | None:
        """What a delta builds on; None for a full checkpoint."""
        entry = self.manifest.base
        if entry is None:
            return None
        base = Checkpoint.at(self.folder.sub(entry.path))
        if entry.token not in (base.manifest.token, *base.manifest.same_as):
            raise CheckpointMismatchError(
                f"{self.folder.locate(MANIFEST)}: base {base.path}: expected the save "
                f"{entry.token}, found {base.manifest.token}, which was written over it"
            )
        return base

    @cached_property
    def chain(self) -> tuple[Checkpoint, ...]:
        """This checkpoint and those it builds on, down to a full one."""
        links = [self]
        while (base := links[-1].base) is not None:
            if base.manifest.token in (link.manifest.token for link in links):
                raise CorruptFileError(
                    f"{links[-1].folder.locate(MANIFEST)}: base: expected an older checkpoint, "
                    f"found {base.path}, which builds on this one"
                )
            links.append(base)
        return tuple(links)

    def locate(self, entry: FileEntry) -> str:
        """A file of this checkpoint, as people write it."""
        return self.folder.locate(entry.path)

    def rows(
        self,
        table: str,
        *,
        shard: tuple[int, int] | None = None,
        columns: Sequence[str] = COLUMNS,
    ) -> Iterator[RowChunk]:
        """All rows of a table, in no particular order, each key once; those of deltas merged in.

        `shard` (index, number): only the rows that belong to that shard of so many, whatever
        number wrote it. `columns` not asked for come with width 0 and are not read. Memory: a
        chunk of up to 16 MiB, and 8 bytes for each row and removed key of the deltas.
        """
        unknown = sorted(set(columns) - set(COLUMNS))
        if unknown:
            raise ConfigError(f"columns of rows must be some of {COLUMNS}, got {unknown}")
        if shard is not None and not 0 <= shard[0] < shard[1]:
            raise ConfigError(f"shard must be (index, number) with index < number, got {shard}")
        self.manifest.table(table, self.path)
        return merged_rows(self.chain, table, shard, columns)

    def dense(self) -> dict[str, NDArray[Any]]:
        """The dense parameters, buffers and their optimizer state, by name."""
        entry = self.manifest.dense_file
        if entry is None:
            return {}
        self.check_file(entry)
        return read_dense(self.folder.read(entry.path), self.manifest.dense, self.locate(entry))

    def workers(self) -> list[dict[str, Any]]:
        """What each worker needs to go on, by rank; empty if nothing was saved."""
        entry = self.manifest.workers_file
        if entry is None:
            return []
        self.check_file(entry)
        try:
            value = json.loads(self.folder.read(entry.path))
        except ValueError as error:
            raise CorruptFileError(f"{self.locate(entry)}: expected JSON: {error}") from error
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise CorruptFileError(
                f"{self.locate(entry)}: expected a list of objects, found others"
            )
        return value

    def check_file(self, entry: FileEntry, *, deep: bool = True) -> None:
        """Raises unless the file has the size, and with `deep` the checksum, of its entry."""
        if entry.path in self._right:
            return
        location = self.locate(entry)
        found = self.folder.size(entry.path)
        if found is None:
            raise CheckpointMissingError(f"{location}: expected the file, found none")
        if found != entry.num_bytes:
            raise CorruptFileError(f"{location}: bytes: expected {entry.num_bytes}, found {found}")
        if deep:
            _, checksum = self.folder.checksum(entry.path)
            if checksum != entry.checksum:
                raise CorruptFileError(
                    f"{location}: checksum: expected {entry.checksum}, found {checksum}"
                )
            self._right.add(entry.path)

    def verify(self, *, deep: bool = True) -> None:
        """Raises the first thing that is wrong with it or with what it builds on.

        Not deep: all files are there with the right size. Deep: also their checksums, that all
        can be read, that rows are in the shard they belong to and no key is there twice.
        """
        for problem in self.problems(deep=deep):
            raise problem

    def problems(self, *, deep: bool = True) -> Iterator[CheckpointError]:
        """Everything that `verify` would raise, one after another."""
        from sparsefleet.checkpoint.verify import problems_of

        return problems_of(self, deep=deep)


def _series_hint(folder: Folder) -> str:
    """Where there are checkpoints inside, which was meant?"""
    inside = [name for name in folder.folders() if step_of(name) is not None]
    return f"; it is a series of {len(inside)}: name one, as {inside[-1]}" if inside else ""
