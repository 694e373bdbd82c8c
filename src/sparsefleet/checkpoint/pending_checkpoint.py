"""A checkpoint being written: nothing of it counts until `commit()` puts its manifest in force."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint.clean_up import clean_up_folder, read_manifest
from sparsefleet.checkpoint.dense_file import describe, write_dense
from sparsefleet.checkpoint.entries import BaseEntry, DenseEntry, FileEntry, TableEntry
from sparsefleet.checkpoint.folder import Folder, open_folder
from sparsefleet.checkpoint.json_fields import check_json
from sparsefleet.checkpoint.manifest import Manifest
from sparsefleet.checkpoint.names import (
    MANIFEST,
    new_token,
    pending_manifest,
    token_of,
    workers_file,
)
from sparsefleet.checkpoint.relative_path import relative_path
from sparsefleet.checkpoint.row_chunk import RowArrays, RowLayout
from sparsefleet.checkpoint.row_file_writer import RowFileWriter, write_removed_keys
from sparsefleet.checkpoint.save_marker import SaveMarker
from sparsefleet.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointMissingError,
    ConfigError,
    CorruptFileError,
)

__all__ = ["PendingCheckpoint"]

_log = logging.getLogger(__name__)


class PendingCheckpoint:
    """A save into a folder. An older checkpoint there stays whole until the commit.

    Others may write files for it, with `RowFileWriter(path, token, ...)`, in other processes.
    Thread-safe for writing; commit or abort when all writers are done.

    >>> import numpy as np, tempfile
    >>> from sparsefleet.checkpoint import Checkpoint
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with PendingCheckpoint.begin(directory) as pending:
    ...         pending.write_dense({"bias": np.zeros(3, np.float32)})
    ...         manifest = pending.commit(step=100)
    ...     Checkpoint.open(directory).dense()["bias"].shape
    (3,)
    """

    def __init__(self, folder: Folder) -> None:
        """Use `begin`."""
        self.folder = folder
        self.token = new_token()
        """In the name of every file of this save."""
        self._dense: tuple[DenseEntry, ...] = ()
        self._dense_file: FileEntry | None = None
        self._workers_file: FileEntry | None = None
        self._marker = SaveMarker(folder, self.token)
        self._is_over = False

    @classmethod
    def begin(
        cls, path: str, storage_options: Mapping[str, Any] | None = None
    ) -> PendingCheckpoint:
        """Starts a save at a path or URL; leftovers of crashed saves there are removed."""
        folder = open_folder(path, storage_options)
        _clean_quietly(folder)
        return cls(folder)

    @property
    def path(self) -> str:
        """Where it is written, for those who write rows in other processes."""
        return self.folder.root

    def write_rows(
        self,
        table: RowLayout | TableEntry,
        shard: int,
        num_shards: int,
        chunks: Iterable[RowArrays],
    ) -> list[FileEntry]:
        """Writes all rows of one shard of a table."""
        layout = RowLayout.of(table) if isinstance(table, TableEntry) else table
        with RowFileWriter(self.folder, self.token, layout, shard, num_shards) as writer:
            for chunk in chunks:
                writer.write(chunk)
                self._marker.renew()
        return writer.close()

    def write_removed(
        self, table: str, shard: int, num_shards: int, keys: Iterable[NDArray[np.uint64]]
    ) -> list[FileEntry]:
        """Writes the keys that were removed since the base; in deltas only."""
        return write_removed_keys(self.folder, self.token, table, (shard, num_shards), keys)

    def write_dense(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Writes all dense parameters, buffers and their optimizer state, by name."""
        self._dense = describe(tensors)
        self._dense_file = write_dense(self.folder, self.token, tensors)

    def write_workers(self, workers: Sequence[Mapping[str, Any]]) -> None:
        """Writes what each worker needs to go on, by rank; plain JSON."""
        check_json(workers, "workers")
        file = self.folder.create(workers_file(self.token))
        try:
            file.write(json.dumps(list(workers), indent=1).encode("ascii") + b"\n")
            file.close()
        except BaseException:
            file.discard()
            raise
        self._workers_file = FileEntry(workers_file(self.token), file.num_bytes, file.checksum)

    def renew(self) -> None:
        """Says that the save still runs; call it now and then while others write."""
        self._marker.renew()

    def commit(
        self,
        *,
        step: int,
        tables: Sequence[TableEntry] = (),
        base: str | None = None,
        base_token: str | None = None,
        same_as: Sequence[str] = (),
        created: str | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Puts the checkpoint in force in one step; what it replaces is removed afterwards.

        `tables` have their files in them (`TableEntry.with_files`). `base` is the path of the
        checkpoint that a delta builds on, which must be the save `base_token`; `same_as` are
        tokens of saves that this one stands for, `created` is when that was if not now. On return
        everything is on disk. If it raises, the older checkpoint is in force as before and this
        one is aborted; or, where the very last step failed, one of the two is in force and both
        are whole.
        """
        if self._is_over:
            raise ConfigError(f"{self.path}: this save is over already")
        try:
            manifest = replace(
                self._manifest(step, created),
                tables=tuple(tables),
                base=None if base is None else self._base_entry(base, base_token, tables),
                same_as=tuple(same_as),
                notes=dict(notes or {}),
            )
            self._check_files(manifest)
            self.folder.replace(MANIFEST, manifest.to_bytes(), pending_manifest(self.token))
        except BaseException:
            if self._may_be_in_force():
                self._end()
            else:
                self.abort()
            raise
        self._end()
        _clean_quietly(self.folder)
        return manifest

    def abort(self) -> None:
        """Gives the save up and removes its files. Does nothing after a commit; never raises."""
        if self._is_over:
            return
        self._is_over = True
        try:
            own = [file.path for file in self.folder.files() if token_of(file.path) == self.token]
            self.folder.remove(own)
        except CheckpointError as error:
            _log.warning("%s: files of an aborted save stay behind: %s", self.path, error)
        finally:
            self._marker.release()

    def __enter__(self) -> PendingCheckpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()

    def _manifest(self, step: int, created: str | None) -> Manifest:
        """Of what this object has written itself."""
        return Manifest(
            token=self.token,
            step=step,
            created=created or datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            written_by=_program(),
            dense=self._dense,
            dense_file=self._dense_file,
            workers_file=self._workers_file,
        )

    def _may_be_in_force(self) -> bool:
        """After a commit that failed: if in doubt yes, then no file must be removed."""
        try:
            return read_manifest(self.folder).token == self.token
        except CheckpointMissingError:
            return False
        except CheckpointError:
            return True

    def _end(self) -> None:
        self._is_over = True
        try:
            self._marker.remove()
        except CheckpointError as error:
            self._marker.release()
            _log.warning("%s: a file of this save stays behind: %s", self.path, error)

    def _base_entry(self, base: str, token: str | None, tables: Sequence[TableEntry]) -> BaseEntry:
        path = relative_path(base, self.path)
        if path == ".":
            raise ConfigError(f"{self.path}: a delta cannot take the place of its own base")
        folder = self.folder.sub(path)
        found = read_manifest(folder)
        if token is not None and token not in (found.token, *found.same_as):
            raise CheckpointMismatchError(
                f"{folder.root}: expected the save {token} that this delta builds on, found "
                f"{found.token}: another job saves to the same directory"
            )
        known = {table.name: table for table in found.tables}
        for table in tables:
            if table.name in known:
                known[table.name].require_same(table, folder.locate(MANIFEST), in_a_delta=True)
        return BaseEntry(path, found.token)

    def _check_files(self, manifest: Manifest) -> None:
        """Those that others wrote are looked at once more before they count."""
        for entry in manifest.files():
            found = self.folder.size(entry.path)
            location = self.folder.locate(entry.path)
            if found is None:
                raise CheckpointMissingError(f"{location}: expected the file, found none")
            if found != entry.num_bytes:
                raise CorruptFileError(
                    f"{location}: bytes: expected {entry.num_bytes}, found {found}"
                )


def _program() -> str:
    from sparsefleet import __version__

    return f"sparsefleet {__version__}"


def _clean_quietly(folder: Folder) -> None:
    """Leftovers cost space and nothing else: they never fail a save."""
    try:
        removed = clean_up_folder(folder)
    except CheckpointError as error:
        _log.warning("%s: leftovers of earlier saves stay behind: %s", folder.root, error)
    else:
        if removed:
            _log.info("%s: removed %d files of earlier saves", folder.root, len(removed))
