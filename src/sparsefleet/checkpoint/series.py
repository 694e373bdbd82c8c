"""A series is a folder of checkpoints named `step-<12 digits>` that belongs to one job."""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparsefleet.checkpoint.checkpoint import Checkpoint
from sparsefleet.checkpoint.folder import Folder, open_folder
from sparsefleet.checkpoint.json_fields import Fields, check, parse_object
from sparsefleet.checkpoint.manifest import FileEntry, Manifest
from sparsefleet.checkpoint.names import MANIFEST, step_of, token_of
from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint
from sparsefleet.checkpoint.save_marker import STALE_AFTER_S, clean_up_folder, read_manifest
from sparsefleet.errors import (
    CheckpointError,
    CheckpointMismatchError,
    CheckpointMissingError,
    ConfigError,
    CorruptFileError,
)

__all__ = [
    "ListedCheckpoint",
    "SeriesOwner",
    "clean_up",
    "compact",
    "latest",
    "list_checkpoints",
    "rotate",
]

_log = logging.getLogger(__name__)


class ListedCheckpoint(NamedTuple):
    """A checkpoint in a series."""

    path: str
    step: int
    manifest: Manifest | None
    """The manifest, or None if it cannot be read for the reason in `problem`."""
    problem: CheckpointError | None


def list_checkpoints(
    path: str, storage_options: Mapping[str, Any] | None = None
) -> list[ListedCheckpoint]:
    """Return the committed checkpoints in a series, sorted by step."""
    folder = open_folder(path, storage_options)
    found = []
    for name in folder.folders():
        step = step_of(name)
        if step is None:
            continue
        place = folder.sub(name)
        if place.size(MANIFEST) is None:
            continue
        manifest = problem = None
        try:
            manifest = read_manifest(place)
        except CheckpointError as error:
            problem = error
        found.append(ListedCheckpoint(place.root, step, manifest, problem))
    return sorted(found, key=lambda listed: listed.step)


def latest(
    path: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    passing_over: Collection[str] = (),
) -> Checkpoint | None:
    """Return the last saved checkpoint in a series whose files all exist, or None if there is none.

    The last saved checkpoint need not have the highest step, because training may have restarted.
    Damaged checkpoints are skipped with a warning; checksums are checked only when files are read.
    `passing_over` lists the paths of checkpoints to skip because they are known to be damaged.
    """
    all_listed = list_checkpoints(path, storage_options)
    for listed in all_listed:
        if listed.problem is not None and listed.path not in passing_over:
            _log.warning("skipping the checkpoint %s: %s", listed.path, listed.problem)
    for place in reversed(_by_age(all_listed)):
        if place in passing_over:
            continue
        try:
            checkpoint = Checkpoint.open(place, storage_options)
            checkpoint.verify(deep=False)
        except CheckpointError as error:
            _log.warning("skipping the checkpoint %s: %s", place, error)
        else:
            return checkpoint
    return None


def rotate(
    path: str,
    keep: int,
    storage_options: Mapping[str, Any] | None = None,
    *,
    newest: str | None = None,
) -> list[str]:
    """Remove all but the last `keep` saved checkpoints in a series; return the removed paths.

    newest: name of the checkpoint just saved, which is always kept. Bases of kept deltas are kept
    as well. Checkpoints with unreadable manifests are neither counted nor removed.
    """
    if keep < 1:
        raise ConfigError(f"keep must be >= 1, got {keep}")
    folder = open_folder(path, storage_options)
    whole = _by_age(list_checkpoints(path, storage_options))
    if newest is not None and (place := folder.sub(newest).root) in whole:
        whole[place] = whole.pop(place)
    needed: set[str] = set()
    for kept in list(whole)[-keep:]:
        while kept in whole and kept not in needed:
            needed.add(kept)
            base = whole[kept].base
            if base is not None:
                kept = folder.sub(kept).sub(base.path).root
    # Newest first, so that a crash in between never leaves a delta without its base.
    removed = [place for place in reversed(whole) if place not in needed]
    for place in removed:
        _remove(folder.sub(place))
    return removed


def clean_up(
    path: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    stale_after_s: float = STALE_AFTER_S,
) -> list[str]:
    """Remove files left in a checkpoint or series by crashed or replaced saves; return their paths.

    Keeps files listed in manifests, files of running saves, and files that are not named like the
    files of a save. A checkpoint with an unreadable manifest is skipped with a warning.
    """
    folder = open_folder(path, storage_options)
    places = [folder.sub(name) for name in folder.folders() if step_of(name) is not None]
    removed = []
    for place in (folder, *places):
        try:
            removed += [place.locate(file) for file in clean_up_folder(place, stale_after_s)]
        except CheckpointError as error:
            _log.warning("%s: cannot remove files of earlier saves: %s", place.root, error)
    return removed


def _by_age(listed: Collection[ListedCheckpoint]) -> dict[str, Manifest]:
    """Return manifests by path, in the order they were saved."""
    whole = [(each.path, each.manifest) for each in listed if each.manifest is not None]
    return dict(sorted(whole, key=lambda pair: pair[1].age_order))


def _remove(folder: Folder) -> None:
    """Remove a checkpoint, manifest first, so that whatever is left is not a checkpoint."""
    if os.path.islink(folder.root):  # keep the target of a link
        os.unlink(folder.root)
        return
    folder.remove([MANIFEST])
    folder.remove([file.path for file in folder.files() if token_of(file.path) is not None])


def compact(
    path: str, target: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> Manifest:
    """Write a full checkpoint with the contents of a delta and its bases; return its manifest.

    Without `target`, the new checkpoint atomically replaces the delta at `path`; deltas based on
    that delta stay valid. A checkpoint that is already full is left unchanged. Every checksum is
    checked. `Checkpoint.rows` describes the memory use.
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


_FILE = "series.json"
_FORMAT = "sparsefleet-series"


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesOwner:
    """The identity of the training run that writes checkpoints to the folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     mine = SeriesOwner(job="train.py", model="0a1b").claim(directory)
    ...     found = SeriesOwner.of(directory)
    ...     found.job, found.generation
    ('train.py', 1)
    """

    job: str
    """The name of the job, for example its command line; "" if unknown."""

    model: str
    """A digest of the model's names and shapes."""

    generation: int = 1
    """Number of training runs started from scratch in this folder so far."""

    token: str = ""
    """A token that differs for each process that has claimed the folder."""

    @staticmethod
    def of(path: str, storage_options: Mapping[str, Any] | None = None) -> SeriesOwner | None:
        """Return the owner of a folder, or None if no training run has claimed it."""
        folder = open_folder(path, storage_options)
        try:
            data = folder.read(_FILE)
        except CheckpointMissingError:
            return None
        try:
            fields = Fields(parse_object(data, "series"), "series")
            kind = fields.text("format")
            check(kind == _FORMAT, "series.format", repr(_FORMAT), kind)
            found = SeriesOwner(
                job=fields.text("job"),
                model=fields.text("model"),
                generation=fields.count("generation"),
                token=fields.text("token"),
            )
            fields.end()
        except ConfigError as error:
            raise CorruptFileError(f"{folder.locate(_FILE)}: {error}") from error
        return found

    def claim(self, path: str, storage_options: Mapping[str, Any] | None = None) -> SeriesOwner:
        """Claim a folder with a new token; return the owner as written to the folder."""
        mine = SeriesOwner(
            job=self.job, model=self.model, generation=self.generation, token=secrets.token_hex(8)
        )
        body = {
            "format": _FORMAT,
            "job": mine.job,
            "model": mine.model,
            "generation": mine.generation,
            "token": mine.token,
        }
        folder = open_folder(path, storage_options)
        data = (json.dumps(body, indent=1) + "\n").encode("ascii")
        folder.replace(_FILE, data, f"series-{mine.token}.json")
        return mine

    def is_job_of(self, other: SeriesOwner) -> bool:
        """Return whether both owners have the same job and model, as far as that is known."""
        knows_names = bool(self.job) and bool(other.job)
        return self.model == other.model and (not knows_names or self.job == other.job)

    def require_owns(self, path: str, storage_options: Mapping[str, Any] | None = None) -> None:
        """Raise CheckpointMismatchError if another process has since claimed the folder."""
        now = SeriesOwner.of(path, storage_options)
        if now is None or now.token != self.token:
            who = "nobody" if now is None else f"{now} (generation {now.generation})"
            raise CheckpointMismatchError(
                f"{path}: this job wrote its checkpoints here, but the directory now belongs to "
                f"{who}; give each job its own directory"
            )

    def __str__(self) -> str:
        return f"job '{self.job}'" if self.job else "a job without a name"
