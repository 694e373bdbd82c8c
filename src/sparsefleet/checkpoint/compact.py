"""A delta and what it builds on as one full checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsefleet.checkpoint.checkpoint import Checkpoint
from sparsefleet.checkpoint.entries import FileEntry
from sparsefleet.checkpoint.manifest import Manifest
from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint

__all__ = ["compact"]


def compact(
    path: str, target: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> Manifest:
    """Writes a full checkpoint with the same contents, and returns its manifest.

    Without a `target` it takes the place of the one at `path`, in one step as any save; deltas
    that build on that one go on working. A full checkpoint is left as it is, then. Every
    checksum is looked at on the way. Memory: see `Checkpoint.rows`.
    """
    checkpoint = Checkpoint.open(path, storage_options)
    manifest = checkpoint.manifest
    checkpoint.verify(deep=False)
    if target is None and manifest.base is None:
        return manifest
    in_place = (manifest.token, *manifest.same_as) if target is None else ()
    with PendingCheckpoint.begin(target or path, storage_options) as pending:
        tables = []
        for table in manifest.tables:
            files: list[FileEntry] = []
            for shard in range(table.num_shards):
                rows = checkpoint.rows(table.name, shard=(shard, table.num_shards))
                files += pending.write_rows(table, shard, table.num_shards, rows)
            tables.append(table.with_files(files, num_shards=table.num_shards))
        if manifest.dense_file is not None:
            pending.write_dense(checkpoint.dense())
        if manifest.workers_file is not None:
            pending.write_workers(checkpoint.workers())
        return pending.commit(
            step=manifest.step,
            tables=tables,
            same_as=in_place,
            created=manifest.created,
            notes=manifest.notes,
        )
