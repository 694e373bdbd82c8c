"""Removes files that crashed or replaced saves left in a checkpoint."""

from __future__ import annotations

from collections import defaultdict

from sparsefleet.checkpoint.folder import Folder
from sparsefleet.checkpoint.manifest import Manifest
from sparsefleet.checkpoint.names import MANIFEST, marker_file, token_of
from sparsefleet.checkpoint.save_marker import STALE_AFTER_S, is_running

__all__ = ["clean_up_folder", "read_manifest"]


def read_manifest(folder: Folder) -> Manifest:
    """The manifest in force; CheckpointMissingError if there is none."""
    return Manifest.from_bytes(folder.read(MANIFEST), folder.locate(MANIFEST))


def clean_up_folder(folder: Folder, stale_after_s: float = STALE_AFTER_S) -> list[str]:
    """Removes files of saves that ended without a commit or were replaced; returns their paths.

    Raises CorruptFileError if the manifest cannot be read: then nothing is removed.
    """
    by_token: dict[str, list[str]] = defaultdict(list)
    for file in folder.files():
        token = token_of(file.path)
        if token is not None:
            by_token[token].append(file.path)
    over = [
        token
        for token, paths in by_token.items()
        if not is_running(folder, token, paths, stale_after_s)
    ]
    # The manifest is looked at last: a save that was seen to be over is in force by now, if ever.
    in_force = read_manifest(folder).token if folder.size(MANIFEST) is not None else None
    removed: list[str] = []
    for token in over:
        if token != in_force:
            removed += sorted(by_token[token], key=marker_file(token).__eq__)
    folder.remove(removed)
    folder.remove_empty()
    return removed
