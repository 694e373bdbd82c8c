"""Read and verify a committed checkpoint; rows of a full checkpoint and its deltas are merged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint.dense_file import read_dense
from sparsefleet.checkpoint.folder import Confinement, Folder, open_folder
from sparsefleet.checkpoint.manifest import FileEntry, Manifest, TableEntry
from sparsefleet.checkpoint.names import MANIFEST, step_of
from sparsefleet.checkpoint.row_chunk import COLUMNS, RowChunk, RowLayout, shard_of
from sparsefleet.checkpoint.save_marker import read_manifest
from sparsefleet.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointMissingError,
    ConfigError,
    CorruptFileError,
)

__all__ = ["Checkpoint", "find_in", "merged_rows"]

Keys = NDArray[np.uint64]
Keep = Callable[[Keys], "NDArray[np.bool_] | None"]
Links = list[tuple["Checkpoint", TableEntry]]


def merged_rows(
    chain: Sequence[Checkpoint], table: str, shard: tuple[int, int] | None, columns: Sequence[str]
) -> Iterator[RowChunk]:
    """Yield the rows of a table in a chain of checkpoints, newest first.

    If all checkpoints in the chain were written by the same number of servers, a key is in the same
    shard of each. Shards are then merged one at a time, with only one shard's keys in memory.
    """
    links: Links = []
    for checkpoint in chain:
        known = {entry.name: entry for entry in checkpoint.manifest.tables}
        if table not in known:
            break  # the table is new in the previous link
        if links:
            known[table].require_same(links[0][1], checkpoint.path, in_a_delta=True)
        links.append((checkpoint, known[table]))
    numbers = {entry.num_shards for _, entry in links}
    if len(numbers) > 1:
        yield from _merge(links, None, _keep_shard(shard), columns)
        return
    num_shards = numbers.pop()
    if shard is not None and shard[1] == num_shards:
        yield from _merge(links, shard[0], _keep_all, columns)
        return
    for index in range(num_shards):
        yield from _merge(links, index, _keep_shard(shard), columns)


def _keep_all(_: Keys) -> None:
    return None


def _keep_shard(shard: tuple[int, int] | None) -> Keep:
    if shard is None or shard[1] <= 1:
        return _keep_all
    return lambda keys: shard_of(keys, shard[1]) == shard[0]


def _merge(
    links: Links, shard: int | None, keep: Keep, columns: Sequence[str]
) -> Iterator[RowChunk]:
    """Yield the rows of a chain, newest checkpoint first, without keys that a newer one has."""
    settled = np.empty(0, np.uint64)
    for place, (checkpoint, entry) in enumerate(links):
        is_last = place + 1 == len(links)
        met: list[Keys] = []
        for chunk in _own_rows(checkpoint, entry, shard, columns):
            wanted = keep(chunk.keys)
            kept = chunk if wanted is None else chunk.only(wanted)
            if len(settled):
                kept = kept.only(~find_in(settled, kept.keys)[1])
            if not is_last:
                met.append(kept.keys)
            if len(kept.keys):
                yield kept
        if not is_last:
            met += _removed_keys(checkpoint, entry, shard, keep)
            settled = np.concatenate([settled, *met])
            settled.sort()


def find_in(ordered: Keys, keys: Keys) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the position of each key in `ordered`, and whether it was found."""
    if not len(ordered):
        return np.zeros(len(keys), np.intp), np.zeros(len(keys), np.bool_)
    places = np.searchsorted(ordered, keys)
    places[places == len(ordered)] = 0
    return places, ordered[places] == keys


def _own_rows(
    checkpoint: Checkpoint, entry: TableEntry, shard: int | None, columns: Sequence[str]
) -> Iterator[RowChunk]:
    from sparsefleet.checkpoint.row_file_reader import read_row_file  # imports pyarrow

    for file in entry.files:
        if shard is None or file.shard == shard:
            checkpoint.check_file(file)
            yield from read_row_file(checkpoint.folder, file, RowLayout.of(entry), columns)


def _removed_keys(
    checkpoint: Checkpoint, entry: TableEntry, shard: int | None, keep: Keep
) -> Iterator[Keys]:
    from sparsefleet.checkpoint.row_file_reader import read_keys  # imports pyarrow

    for file in entry.removed:
        if shard is None or file.shard == shard:
            checkpoint.check_file(file)
            for keys in read_keys(checkpoint.folder, file):
                wanted = keep(keys)
                yield keys if wanted is None else keys[wanted]


class Checkpoint:
    """Reads a checkpoint; a delta is read together with its bases.

    A file's checksum is verified once per `Checkpoint` object, before any row or tensor of that
    file is returned. Thread-safe.

    Example: see `PendingCheckpoint`.
    """

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        """Do not call the constructor; use `open`."""
        self.folder = folder
        self.manifest = manifest
        self._right: set[str] = set()

    @classmethod
    def open(
        cls,
        path: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        within: Confinement | None = None,
    ) -> Checkpoint:
        """Open the checkpoint at a path or URL.

        within: the root that the checkpoint and its bases must lie in.
        """
        return cls.at(open_folder(path, storage_options, within=within))

    @classmethod
    def at(cls, folder: Folder) -> Checkpoint:
        """Open the checkpoint in a folder."""
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
        """Return the checkpoint that this delta builds on, or None if this is a full checkpoint."""
        entry = self.manifest.base
        if entry is None:
            return None
        try:
            folder = self.folder.sub(entry.path)
        except ConfigError as error:
            raise ConfigError(f"{self.folder.locate(MANIFEST)}: base: {error}") from error
        base = Checkpoint.at(folder)
        if entry.token not in (base.manifest.token, *base.manifest.same_as):
            raise CheckpointMismatchError(
                f"{self.folder.locate(MANIFEST)}: base {base.path}: expected the save "
                f"{entry.token}, found {base.manifest.token}, which has replaced it"
            )
        return base

    @cached_property
    def chain(self) -> tuple[Checkpoint, ...]:
        """Return this checkpoint and its bases, ending with the full checkpoint."""
        links = [self]
        while (base := links[-1].base) is not None:
            if base.manifest.token in (link.manifest.token for link in links):
                raise CorruptFileError(
                    f"{links[-1].folder.locate(MANIFEST)}: base: expected an older checkpoint, "
                    f"found {base.path}, which builds on this checkpoint"
                )
            links.append(base)
        return tuple(links)

    def locate(self, entry: FileEntry) -> str:
        """Return the path or URL of a file in this checkpoint."""
        return self.folder.locate(entry.path)

    def rows(
        self, table: str, *, shard: tuple[int, int] | None = None, columns: Sequence[str] = COLUMNS
    ) -> Iterator[RowChunk]:
        """Yield all rows of a table with deltas merged: each key once, in no particular order.

        `shard` (index, count) selects the rows of one of `count` shards, regardless of how many
        shards wrote them. Columns not listed in `columns` have width 0 and are not read. Memory use
        is a chunk of up to 16 MiB, plus 8 bytes for each row and removed key in the deltas.
        """
        unknown = sorted(set(columns) - set(COLUMNS))
        if unknown:
            raise ConfigError(f"columns must be a subset of {COLUMNS}, got {unknown}")
        if shard is not None and not 0 <= shard[0] < shard[1]:
            raise ConfigError(f"shard must be (index, count) with index < count, got {shard}")
        self.manifest.table(table, self.path)
        return merged_rows(self.chain, table, shard, columns)

    def dense(self) -> dict[str, NDArray[Any]]:
        """Return the dense parameters and buffers, with their optimizer state, by name."""
        entry = self.manifest.dense_file
        if entry is None:
            return {}
        self.check_file(entry)
        return read_dense(self.folder.read(entry.path), self.manifest.dense, self.locate(entry))

    def workers(self) -> list[dict[str, Any]]:
        """Return the state that each worker needs to resume, by rank, or [] if none was saved."""
        entry = self.manifest.workers_file
        if entry is None:
            return []
        self.check_file(entry)
        try:
            value = json.loads(self.folder.read(entry.path))
        except (ValueError, RecursionError) as error:
            raise CorruptFileError(f"{self.locate(entry)}: expected JSON: {error}") from error
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise CorruptFileError(
                f"{self.locate(entry)}: expected a list of objects, found other values"
            )
        return value

    def check_file(self, entry: FileEntry, *, deep: bool = True) -> None:
        """Raise an error unless the file has the size and, with `deep`, the checksum of its entry.

        Both are recorded in the manifest.
        """
        if entry.path in self._right:
            return
        location = self.locate(entry)
        found = self.folder.size(entry.path)
        if found is None:
            raise CheckpointMissingError(f"{location}: file not found")
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
        """Raise the first problem found in this checkpoint or its bases.

        Checks that all files exist with the right size; with `deep` also that checksums match, all
        files can be read, rows are in the right shard, and no key appears twice.
        """
        for problem in self.problems(deep=deep):
            raise problem

    def problems(self, *, deep: bool = True) -> Iterator[CheckpointError]:
        """Yield all problems found, where `verify` raises only the first."""
        return _problems_of(self, deep=deep)


def _series_hint(folder: Folder) -> str:
    """Return a hint to append to an error if the folder contains checkpoints."""
    inside = [name for name in folder.folders() if step_of(name) is not None]
    return (
        f"; it is a series of checkpoints ({len(inside)}); choose one, such as {inside[-1]}"
        if inside
        else ""
    )


def _problems_of(checkpoint: Checkpoint, *, deep: bool) -> Iterator[CheckpointError]:
    """Yield an error for each problem in a checkpoint or its bases."""
    try:
        chain = checkpoint.chain
    except CheckpointError as error:
        yield error
        chain = (checkpoint,)
    for link in chain[1:]:
        yield from _misfits(checkpoint, link)
    for link in chain:
        yield from _problems_of_one(link, deep=deep)


def _misfits(checkpoint: Checkpoint, base: Checkpoint) -> Iterator[CheckpointError]:
    """Yield errors for tables whose rows cannot be merged with the rows of the base."""
    wanted = {table.name: table for table in checkpoint.manifest.tables}
    for table in base.manifest.tables:
        if table.name in wanted:
            try:
                where = base.folder.locate(MANIFEST)
                table.require_same(wanted[table.name], where, in_a_delta=True)
            except CheckpointError as error:
                yield error


def _problems_of_one(checkpoint: Checkpoint, *, deep: bool) -> Iterator[CheckpointError]:
    damaged = set()
    for entry in checkpoint.manifest.files():
        try:
            checkpoint.check_file(entry, deep=deep)
        except CheckpointError as error:
            damaged.add(entry.path)
            yield error
    if not deep:
        return
    for table in checkpoint.manifest.tables:
        for shard in range(table.num_shards):
            files = [file for file in table.files if file.shard == shard]
            removed = [file for file in table.removed if file.shard == shard]
            if damaged.isdisjoint(file.path for file in (*files, *removed)):
                try:
                    _check_shard(checkpoint, table, files, removed)
                except CheckpointError as error:
                    yield error
    for file, read in (
        (checkpoint.manifest.dense_file, checkpoint.dense),
        (checkpoint.manifest.workers_file, checkpoint.workers),
    ):
        if file is not None and file.path not in damaged:
            try:
                read()
            except CheckpointError as error:
                yield error


def _check_shard(
    checkpoint: Checkpoint, table: TableEntry, files: list[FileEntry], removed: list[FileEntry]
) -> None:
    """Check a shard by reading all its rows: keys must be distinct and belong to the shard.

    Keeps the keys in memory.
    """
    from sparsefleet.checkpoint.row_file_reader import (  # imports pyarrow
        read_keys,
        read_row_file,
    )

    layout = RowLayout.of(table)
    keys: list[Keys] = []
    for entry in files:
        for chunk in read_row_file(checkpoint.folder, entry, layout):
            _check_owner(checkpoint, entry, chunk.keys, table.num_shards)
            keys.append(chunk.keys)
    for entry in removed:
        for part in read_keys(checkpoint.folder, entry):
            _check_owner(checkpoint, entry, part, table.num_shards)
            keys.append(part)
    every = np.sort(np.concatenate(keys)) if keys else np.empty(0, np.uint64)
    twice = every[1:][every[1:] == every[:-1]]
    if len(twice):
        where = checkpoint.locate(files[0])
        raise CorruptFileError(
            f"{where}: table {table.name!r}, shard {files[0].shard}: expected each key once, "
            f"found {len(twice)} duplicates, for example key {int(twice[0])}"
        )


def _check_owner(checkpoint: Checkpoint, entry: FileEntry, keys: Keys, num_shards: int) -> None:
    shards = shard_of(keys, num_shards)
    wrong = shards != entry.shard
    if wrong.any():
        raise CorruptFileError(
            f"{checkpoint.locate(entry)}: expected keys of shard {entry.shard} of {num_shards}, "
            f"found {int(keys[wrong][0])} of shard {int(shards[wrong][0])}"
        )
