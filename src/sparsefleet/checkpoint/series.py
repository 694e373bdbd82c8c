"""A folder of checkpoints, `step-<12 digits>` each."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from sparsefleet.checkpoint.checkpoint import Checkpoint
from sparsefleet.checkpoint.clean_up import clean_up_folder, read_manifest
from sparsefleet.checkpoint.folder import Folder, open_folder
from sparsefleet.checkpoint.manifest import Manifest
from sparsefleet.checkpoint.names import MANIFEST, step_of, token_of
from sparsefleet.checkpoint.save_marker import STALE_AFTER_S
from sparsefleet.errors import CheckpointError, ConfigError

__all__ = ["ListedCheckpoint", "clean_up", "latest", "list_checkpoints", "rotate"]

_log = logging.getLogger(__name__)


class ListedCheckpoint(NamedTuple):
    """A checkpoint of a series."""

    path: str
    step: int
    manifest: Manifest | None
    """None if it cannot be read; then `problem` says why."""
    problem: CheckpointError | None


def list_checkpoints(
    path: str, storage_options: Mapping[str, Any] | None = None
) -> list[ListedCheckpoint]:
    """The checkpoints of a series by step; saves that were never committed are not among them."""
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
    """The last one saved of a series whose files are all there; None if there is none.

    That is not the highest step where a training went back or began anew. A damaged one is passed
    over with a warning. Checksums are not looked at: reading does. `passing_over` are paths of
    those that reading has found out.
    """
    all_listed = list_checkpoints(path, storage_options)
    for listed in all_listed:
        if listed.problem is not None and listed.path not in passing_over:
            _log.warning("passing over the checkpoint %s: %s", listed.path, listed.problem)
    for place in reversed(_by_age(all_listed)):
        if place in passing_over:
            continue
        try:
            checkpoint = Checkpoint.open(place, storage_options)
            checkpoint.verify(deep=False)
        except CheckpointError as error:
            _log.warning("passing over the checkpoint %s: %s", place, error)
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
    """Removes all checkpoints of a series but the last `keep` saved; returns the paths removed.

    newest: the name of the one just saved, which is kept whatever clocks say. What a kept delta
    builds on stays as well. One whose manifest cannot be read is neither counted nor removed.
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
    # The newest goes first: a crash between two never leaves a delta without its base.
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
    """Removes what crashed or replaced saves left in a checkpoint or a series; returns the files.

    Left alone: what manifests name, saves that are still running, and every file that is not
    named like one of a save. A checkpoint whose manifest cannot be read is passed over with a
    warning.
    """
    folder = open_folder(path, storage_options)
    places = [folder.sub(name) for name in folder.folders() if step_of(name) is not None]
    removed = []
    for place in (folder, *places):
        try:
            removed += [place.locate(file) for file in clean_up_folder(place, stale_after_s)]
        except CheckpointError as error:
            _log.warning("%s: leftovers of earlier saves stay behind: %s", place.root, error)
    return removed


def _by_age(listed: Collection[ListedCheckpoint]) -> dict[str, Manifest]:
    """Those with a manifest, by path, in the order they were saved."""
    whole = [(each.path, each.manifest) for each in listed if each.manifest is not None]
    return dict(sorted(whole, key=lambda pair: pair[1].age_order))


def _remove(folder: Folder) -> None:
    """The manifest first: from then on it is no checkpoint, whatever is left of it."""
    if os.path.islink(folder.root):  # of what it leads to nothing is removed
        os.unlink(folder.root)
        return
    folder.remove([MANIFEST])
    folder.remove([file.path for file in folder.files() if token_of(file.path) is not None])
