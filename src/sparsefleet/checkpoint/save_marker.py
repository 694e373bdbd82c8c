"""Distinguish running saves from crashed ones, and remove the files that crashed saves left.

A save creates `pending-<token>.json` first and removes it last. On a disk the save holds a lock
(flock) on that file, which the system releases however the process exits. Object stores have no
locks, so a save there counts as running until none of its files has changed for a day.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections import defaultdict
from collections.abc import Sequence

from sparsefleet.checkpoint.folder import Folder, LocalFolder, reported
from sparsefleet.checkpoint.manifest import Manifest
from sparsefleet.checkpoint.names import MANIFEST, marker_file, pending_marker, token_of

__all__ = [
    "STALE_AFTER_S",
    "SaveMarker",
    "clean_up_folder",
    "is_running",
    "read_manifest",
    "read_manifest_bytes",
]

STALE_AFTER_S = 24 * 3600.0
"""A save without a lock counts as crashed if none of its files has changed for this long."""

_RENEW_AFTER_S = 3600.0
_MOST_MANIFEST_BYTES = 256 << 20


class SaveMarker:
    """Marks a save as running, from construction to `remove()` or the end of the process."""

    def __init__(self, folder: Folder, token: str) -> None:
        self._folder = folder
        self._token = token
        self._descriptor = -1
        about = {"host": socket.gethostname(), "process": os.getpid(), "token": token}
        self._contents = json.dumps(about).encode() + b"\n"
        if isinstance(folder, LocalFolder):
            self._put_locked(folder)
        else:
            self._put()

    def _put(self) -> None:
        path = marker_file(self._token)
        self._folder.replace(path, self._contents, path)
        self._written = time.monotonic()

    def _put_locked(self, folder: LocalFolder) -> None:
        """Lock the marker file before it gets its name, so that no process sees it unlocked."""
        location = folder.locate(marker_file(self._token))
        before = folder.locate(pending_marker(self._token))
        with reported("write", location):
            while self._descriptor < 0:
                folder.make()
                with contextlib.suppress(FileNotFoundError):  # removed by a cleanup, so try again
                    self._descriptor = _put_locked(before, location, self._contents)

    def renew(self) -> None:
        """Show that a save in an object store is still running. Must be called regularly."""
        is_old = self._descriptor < 0 and time.monotonic() - self._written > _RENEW_AFTER_S
        if is_old:
            self._put()

    def remove(self) -> None:
        """Remove the marker, since the save is over."""
        self._folder.remove([marker_file(self._token)])
        self.release()

    def release(self) -> None:
        """Release the lock but keep the marker file, as if the process had crashed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _put_locked(before: str, location: str, contents: bytes) -> int:
    descriptor = os.open(before, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(OSError):  # no locks on this file system; the file's age decides
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, contents)
        os.rename(before, location)
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(before)
        raise
    return descriptor


def is_running(
    folder: Folder, token: str, paths: Sequence[str], stale_after_s: float = STALE_AFTER_S
) -> bool:
    """Return whether a save may still be running, given its token and files."""
    marker = marker_file(token)
    if marker not in paths:
        return False
    if isinstance(folder, LocalFolder):
        try:
            return _is_locked(folder.locate(marker))
        except FileNotFoundError:
            return False
        except PermissionError:
            return True
        except OSError:  # no locks here
            pass
    times = [folder.modified(path) for path in paths]
    known = [seconds for seconds in times if seconds is not None]
    return not known or time.time() - max(known) < stale_after_s


def _is_locked(location: str) -> bool:
    descriptor = os.open(location, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_manifest(folder: Folder) -> Manifest:
    """Return the committed manifest. Raises CheckpointMissingError if there is none."""
    return Manifest.from_bytes(read_manifest_bytes(folder), folder.locate(MANIFEST))


def read_manifest_bytes(folder: Folder) -> bytes:
    """Return the contents of manifest.json, unchecked."""
    return folder.read(MANIFEST, max_bytes=_MOST_MANIFEST_BYTES)


def clean_up_folder(folder: Folder, stale_after_s: float = STALE_AFTER_S) -> list[str]:
    """Remove files of saves that were replaced or never committed; return their paths.

    Raises CorruptFileError, and removes nothing, if the manifest cannot be read.
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
    # Read the manifest last, because a save seen to have ended is committed by now, if ever.
    committed = read_manifest(folder).token if folder.size(MANIFEST) is not None else None
    removed: list[str] = []
    for token in over:
        if token != committed:
            removed += sorted(by_token[token], key=marker_file(token).__eq__)
    folder.remove(removed)
    folder.remove_empty()
    return removed
