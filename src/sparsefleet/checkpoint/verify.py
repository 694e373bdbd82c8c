"""Looks for everything that can be wrong with a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint.entries import FileEntry, TableEntry
from sparsefleet.checkpoint.names import MANIFEST
from sparsefleet.checkpoint.row_chunk import RowLayout
from sparsefleet.checkpoint.shard_map import shard_of
from sparsefleet.errors import CheckpointError, CorruptFileError

if TYPE_CHECKING:
    from sparsefleet.checkpoint.checkpoint import Checkpoint

__all__ = ["problems_of"]

Keys = NDArray[np.uint64]


def problems_of(checkpoint: Checkpoint, *, deep: bool) -> Iterator[CheckpointError]:
    """What is wrong with a checkpoint and with those it builds on, as errors."""
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
    """Tables of a delta whose rows cannot be merged with those of what it builds on."""
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
    """Reads every row of a shard; its keys are in memory meanwhile."""
    from sparsefleet.checkpoint.row_file_reader import (  # it loads pyarrow
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
            f"found {len(twice)} twice, such as {int(twice[0])}"
        )


def _check_owner(checkpoint: Checkpoint, entry: FileEntry, keys: Keys, num_shards: int) -> None:
    shards = shard_of(keys, num_shards)
    wrong = shards != entry.shard
    if wrong.any():
        raise CorruptFileError(
            f"{checkpoint.locate(entry)}: expected keys of shard {entry.shard} of {num_shards}, "
            f"found {int(keys[wrong][0])} of shard {int(shards[wrong][0])}"
        )
