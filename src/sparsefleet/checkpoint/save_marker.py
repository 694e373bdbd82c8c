"""Tells a save that is still running from one that crashed.

A save first puts down `pending-<token>.json` and takes it away when it is done. On a disk it
holds a lock (flock) on it, which the system drops when the process ends, however it ends. In an
object store there are no locks: there a save counts as running until none of its files has
changed for a day.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Sequence

from sparsefleet.checkpoint.folder import Folder, reported
from sparsefleet.checkpoint.local_folder import LocalFolder
from sparsefleet.checkpoint.names import marker_file, pending_marker

__all__ = ["STALE_AFTER_S", "SaveMarker", "is_running"]

STALE_AFTER_S = 24 * 3600.0
"""After this long without a change, a save that has no lock counts as crashed."""

_RENEW_AFTER_S = 3600.0


class SaveMarker:
    """Stands for a save from construction to `remove()`, or to the end of the process."""

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
        """The file gets its name when it is locked already, so nobody finds it without."""
        location = folder.locate(marker_file(self._token))
        before = folder.locate(pending_marker(self._token))
        with reported("write", location):
            while self._descriptor < 0:
                folder.make()
                with contextlib.suppress(FileNotFoundError):  # cleaned up by another: once more
                    self._descriptor = _put_locked(before, location, self._contents)

    def renew(self) -> None:
        """Keeps a save in an object store from looking crashed; call it now and then."""
        is_old = self._descriptor < 0 and time.monotonic() - self._written > _RENEW_AFTER_S
        if is_old:
            self._put()

    def remove(self) -> None:
        """The save is over."""
        self._folder.remove([marker_file(self._token)])
        self.release()

    def release(self) -> None:
        """Drops the lock and leaves the file: what a crash does."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _put_locked(before: str, location: str, contents: bytes) -> int:
    descriptor = os.open(before, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: age decides
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
    """Whether the save of that token, with these files, may still be under way."""
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
