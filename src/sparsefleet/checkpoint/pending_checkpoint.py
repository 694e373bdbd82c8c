"""A checkpoint being written, which takes effect only when `commit()` writes the manifest."""

from __future__ import annotations

import json
import logging
import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from numpy.typing import NDArray

from sparsefleet.checkpoint.dense_file import describe, write_dense
from sparsefleet.checkpoint.folder import Folder, open_folder
from sparsefleet.checkpoint.json_fields import check_json
from sparsefleet.checkpoint.manifest import (
    EXPORT_KIND,
    FORMAT,
    SERIES_NOTE,
    BaseEntry,
    DenseEntry,
    FileEntry,
    Manifest,
    TableEntry,
)
from sparsefleet.checkpoint.names import (
    MANIFEST,
    new_token,
    pending_manifest,
    step_of,
    token_of,
    workers_file,
)
from sparsefleet.checkpoint.row_chunk import RowArrays, RowLayout
from sparsefleet.checkpoint.row_file_writer import RowFileWriter
from sparsefleet.checkpoint.save_marker import (
    SaveMarker,
    clean_up_folder,
    read_manifest,
    read_manifest_bytes,
)
from sparsefleet.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointMissingError,
    ConfigError,
    CorruptFileError,
)

__all__ = ["PendingCheckpoint", "relative_path"]

_log = logging.getLogger(__name__)


class PendingCheckpoint:
    """A save into a folder. An older checkpoint in that folder stays valid until the commit.

    Other processes may write files for the save with `RowFileWriter(path, token, ...)`.
    Writing is thread-safe; call `commit` or `abort` when all writers are done.

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
        """Do not call the constructor; use `begin`."""
        self.folder = folder
        self.token = new_token()
        """Part of the name of every file in this save."""
        self._dense: tuple[DenseEntry, ...] = ()
        self._dense_file: FileEntry | None = None
        self._workers_file: FileEntry | None = None
        self._marker = SaveMarker(folder, self.token)
        self._is_over = False

    @classmethod
    def begin(
        cls, path: str, storage_options: Mapping[str, Any] | None = None
    ) -> PendingCheckpoint:
        """Start a save at a path or URL; remove files left there by crashed saves.

        Raises CheckpointError if the folder holds something else, such as an exported model, whose
        manifest the commit would replace.
        """
        folder = open_folder(path, storage_options)
        _require_no_other_manifest(folder)
        _clean_quietly(folder)
        return cls(folder)

    @property
    def path(self) -> str:
        """Return the path or URL to pass to other processes that write rows."""
        return self.folder.root

    def write_rows(
        self,
        table: RowLayout | TableEntry,
        shard: int,
        num_shards: int,
        chunks: Iterable[RowArrays],
    ) -> list[FileEntry]:
        """Write all rows of one shard of a table."""
        layout = RowLayout.of(table) if isinstance(table, TableEntry) else table
        with RowFileWriter(self.folder, self.token, layout, shard, num_shards) as writer:
            for chunk in chunks:
                writer.write(chunk)
                self._marker.renew()
        return writer.close()

    def write_dense(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Write all dense parameters and buffers, with their optimizer state, by name."""
        self._dense = describe(tensors)
        self._dense_file = write_dense(self.folder, self.token, tensors)

    def write_workers(self, workers: Sequence[Mapping[str, Any]]) -> None:
        """Write the state that each worker needs to resume, by rank, as plain JSON."""
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
        """Show that the save is still running. Call this regularly while other processes write."""
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
        """Commit the checkpoint atomically, then remove the checkpoint it replaces.

        `tables` include their files (`TableEntry.with_files`). `base` is the path of the checkpoint
        that a delta builds on, which must be the save `base_token`. `same_as` lists the tokens of
        saves with the same contents, and `created` is the time they were made (default: now). On
        return, everything is on disk. If `commit` raises, the older checkpoint stays valid and this
        save is aborted. If only the very last step failed, either the old or the new checkpoint is
        valid, and the files of both are kept.
        """
        if self._is_over:
            raise ConfigError(f"{self.path}: this save was already committed or aborted")
        try:
            manifest = replace(
                self._manifest(step, created),
                tables=tuple(tables),
                base=None if base is None else self._base_entry(base, base_token, tables),
                same_as=tuple(same_as),
                notes=self._numbered(notes or {}),
            )
            self._check_files(manifest)
            self.folder.replace(MANIFEST, manifest.to_bytes(), pending_manifest(self.token))
        except BaseException:
            if self._may_be_committed():
                self._end()
            else:
                self.abort()
            raise
        self._end()
        _clean_quietly(self.folder)
        return manifest

    def abort(self) -> None:
        """Abort the save and remove its files. Does nothing after a commit; never raises."""
        if self._is_over:
            return
        self._is_over = True
        try:
            own = [file.path for file in self.folder.files() if token_of(file.path) == self.token]
            self.folder.remove(own)
        except CheckpointError as error:
            _log.warning("%s: cannot remove the files of an aborted save: %s", self.path, error)
        finally:
            self._marker.release()

    def __enter__(self) -> PendingCheckpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def _manifest(self, step: int, created: str | None) -> Manifest:
        """Return a manifest of the files that this object has written."""
        return Manifest(
            token=self.token,
            step=step,
            created=created or datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            written_by=_program(),
            dense=self._dense,
            dense_file=self._dense_file,
            workers_file=self._workers_file,
        )

    def _numbered(self, notes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the notes; in a series, add the number of this save, counted from the first."""
        from sparsefleet.checkpoint.series import list_checkpoints  # avoids a circular import

        name = posixpath.basename(self.folder.root.rstrip("/"))
        series = dict(notes.get(SERIES_NOTE, {}))
        if step_of(name) is None or "number" in series:
            return dict(notes)
        listed = list_checkpoints(self.folder.sub("..").root, self.folder.storage_options)
        numbers = [each.manifest.number or 0 for each in listed if each.manifest is not None]
        series["number"] = 1 + max(numbers, default=0)
        return {**notes, SERIES_NOTE: series}

    def _may_be_committed(self) -> bool:
        """Return whether a failed commit may have taken effect, so that all files must be kept."""
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
            _log.warning("%s: cannot remove a file of this save: %s", self.path, error)

    def _base_entry(self, base: str, token: str | None, tables: Sequence[TableEntry]) -> BaseEntry:
        path = relative_path(base, self.path)
        if path == ".":
            raise ConfigError(
                f"{self.path}: a delta cannot replace its own base; save it to a different "
                "directory"
            )
        folder = self.folder.sub(path)
        found = read_manifest(folder)
        if token is not None and token not in (found.token, *found.same_as):
            raise CheckpointMismatchError(
                f"{folder.root}: expected the save {token} that this delta builds on, found "
                f"{found.token}; another job saves to the same directory; give each job its own"
            )
        known = {table.name: table for table in found.tables}
        for table in tables:
            if table.name in known:
                known[table.name].require_same(table, folder.locate(MANIFEST), in_a_delta=True)
        return BaseEntry(path, found.token)

    def _check_files(self, manifest: Manifest) -> None:
        """Check once more that all files written by other processes are complete."""
        for entry in manifest.files():
            found = self.folder.size(entry.path)
            location = self.folder.locate(entry.path)
            if found is None:
                raise CheckpointMissingError(f"{location}: file not found")
            if found != entry.num_bytes:
                raise CorruptFileError(
                    f"{location}: bytes: expected {entry.num_bytes}, found {found}"
                )


def _program() -> str:
    from sparsefleet import __version__

    return f"sparsefleet {__version__}"


def _require_no_other_manifest(folder: Folder) -> None:
    """Raise CheckpointError if manifest.json belongs to something other than a checkpoint.

    A manifest that is not JSON may be a damaged one of ours, which a new save may replace.
    """
    if folder.size(MANIFEST) is None:
        return
    try:
        value = json.loads(read_manifest_bytes(folder))
    except (ValueError, RecursionError, CorruptFileError, CheckpointMissingError):
        return
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        is_export = isinstance(value, dict) and value.get("kind") == EXPORT_KIND
        thing = "an exported model" if is_export else "something else"
        raise CheckpointError(
            f"{folder.locate(MANIFEST)} is not the manifest of a checkpoint; it describes {thing}, "
            "which saving would destroy: save to a different directory"
        )


def _clean_quietly(folder: Folder) -> None:
    """Remove files left by crashed saves. If that fails, this save still continues."""
    try:
        removed = clean_up_folder(folder)
    except CheckpointError as error:
        _log.warning("%s: cannot remove files of earlier saves: %s", folder.root, error)
    else:
        if removed:
            _log.info("%s: removed %d files of earlier saves", folder.root, len(removed))


def relative_path(path: str, start: str) -> str:
    """Return `path` relative to the folder `start`, or absolute on a different file system.

    >>> relative_path("s3://bucket/run/step-1", "s3://bucket/run/step-2")
    '../step-1'
    >>> relative_path("s3://other/run/step-1", "s3://bucket/run/step-2")
    's3://other/run/step-1'
    >>> relative_path("/runs/step-1", "s3://bucket/run/step-2")
    'file:///runs/step-1'
    """
    place, inner = _split(path)
    start_place, start_inner = _split(start)
    if place == start_place:
        return posixpath.relpath(inner, start_inner)
    return path if place else f"file://{inner}"


def _split(path: str) -> tuple[str, str]:
    """Split a path or URL into its prefix (scheme and host or bucket) and the rest."""
    scheme, mark, rest = path.rpartition("://")
    if scheme in ("", "file", "local"):
        return "", os.path.abspath(os.path.expanduser(rest))
    host, _, inner = rest.partition("/")
    return f"{scheme}{mark}{host}", f"/{inner}"
