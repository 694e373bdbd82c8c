"""The files of an epoch as work: who reads what, and how far it has come."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from sparsefleet.data.progress import FileMark, FileToRead, Progress
from sparsefleet.errors import ConfigError, PeerLostError

_log = logging.getLogger("sparsefleet.data")


class WorkList:
    """The files of one epoch, each handed to one worker. Not thread-safe: `WorkLists` locks.

    >>> work = WorkList([FileToRead("a"), FileToRead("b")])
    >>> work.take("worker-0").path, work.take("worker-1").path, work.take("worker-0")
    ('a', 'b', None)
    >>> work.report("worker-1", [FileMark("b", 0, 3)])
    >>> work.release("worker-1")
    >>> work.take("worker-0")
    FileToRead(path='b', done=((0, 3),))
    """

    def __init__(self, files: Sequence[FileToRead]) -> None:
        self.files = list(files)
        self._waiting = deque(file.path for file in files)
        self._owners: dict[str, str] = {}
        self._progress = Progress()
        for file in files:
            self._progress.advance(FileMark(file.path, begin, end) for begin, end in file.done)

    def take(self, worker: str) -> FileToRead | None:
        """The next file that nobody reads, for this worker."""
        while self._waiting:
            path = self._waiting.popleft()
            left = self._progress.remaining([path])
            if left:  # else it was read to its end before it was handed back
                self._owners[path] = worker
                return left[0]
        return None

    def report(self, worker: str, marks: Sequence[FileMark]) -> None:
        """Records that the worker's training was given."""
        for mark in marks:
            if mark.begin == mark.end and mark.path not in self._owners:
                continue  # the end of a file of which all records were reported
            if self._owners.get(mark.path) != worker:
                raise ConfigError(
                    f"{worker} reports records of {mark.path}, which "
                    f"{self._owners.get(mark.path, 'nobody')} reads"
                )
            self._progress.advance([mark])
            if not self._progress.remaining([mark.path]):
                del self._owners[mark.path]

    def finish(self, worker: str) -> None:
        """All files that the worker has are read."""
        for path in self.files_of(worker):
            del self._owners[path]

    def release(self, worker: str) -> None:
        """What is left of the worker's files is for others, before all others."""
        for path in reversed(self.files_of(worker)):
            del self._owners[path]
            self._waiting.appendleft(path)

    def files_of(self, worker: str) -> list[str]:
        """The files that the worker is reading."""
        return [path for path, owner in self._owners.items() if owner == worker]

    @property
    def workers(self) -> set[str]:
        """Those who are reading."""
        return set(self._owners.values())

    @property
    def unread(self) -> list[FileToRead]:
        """Files, or what is left of them, that were not read to their end."""
        return self._progress.remaining([*self._waiting, *self._owners])


class WorkLists:
    """The work lists of a job, by name and epoch. Thread-safe.

    is_present: whether a worker is still there. What a lost one has left of its files goes to
        those who ask after that, from where it last reported, if the list keeps going; else
        whoever asks gets PeerLostError.
    """

    def __init__(self, is_present: Callable[[str], bool] = lambda _: True) -> None:
        self._is_present = is_present
        self._lock = threading.Lock()
        self._lists: dict[tuple[str, int], WorkList] = {}
        self._epochs: dict[str, dict[str, int]] = {}  # of each list: the epoch of each worker

    def begin(
        self, name: str, epoch: int, worker: str, num_workers: int, files: Sequence[FileToRead]
    ) -> None:
        """The worker starts an epoch, and is done with those before it."""
        with self._lock:
            epochs = self._epochs.setdefault(name, {})
            if epochs.get(worker, 0) >= epoch:
                raise ConfigError(
                    f"{worker} begins epoch {epoch} of '{name}', but was in {epochs[worker]}: two "
                    "readers use one name, or a reader was made anew; give each a name of its own"
                )
            work = self._lists.get((name, epoch))
            if work is None:
                if epoch <= min(epochs.values(), default=0):
                    raise ConfigError(f"epoch {epoch} of '{name}' is over")
                work = self._lists[name, epoch] = WorkList(files)
            elif work.files != list(files):
                raise ConfigError(
                    f"{worker} begins epoch {epoch} of '{name}' with {len(files)} files to read, "
                    f"others with {len(work.files)} or with others: all workers must name the same "
                    "files and load the same state (merge_states)"
                )
            if worker in epochs:
                self._leave(name, epochs[worker], worker)
            epochs[worker] = epoch
            self._forget(name, num_workers)

    def take(
        self, name: str, epoch: int, worker: str, keep_going: bool = False
    ) -> FileToRead | None:
        """The next file for the worker; None if there is nothing that nobody reads."""
        with self._lock:
            work = self._find(name, epoch)
            for other in work.workers - {worker}:
                if not self._is_present(other):
                    self._lose(name, epoch, work, other, keep_going)
            return work.take(worker)

    def report(self, name: str, epoch: int, worker: str, marks: Sequence[FileMark]) -> None:
        """See `WorkList.report`."""
        with self._lock:
            self._find(name, epoch).report(worker, marks)

    def finish(self, name: str, epoch: int, worker: str) -> None:
        """See `WorkList.finish`."""
        with self._lock:
            self._find(name, epoch).finish(worker)

    def release(self, name: str, epoch: int, worker: str) -> None:
        """See `WorkList.release`."""
        with self._lock:
            self._leave(name, epoch, worker)

    def _find(self, name: str, epoch: int) -> WorkList:
        found = self._lists.get((name, epoch))
        if found is None:
            raise ConfigError(
                f"there is no epoch {epoch} of '{name}': it has not begun, or is over"
            )
        return found

    def _leave(self, name: str, epoch: int, worker: str) -> None:
        work = self._lists.get((name, epoch))
        if work is not None:
            work.release(worker)

    def _lose(self, name: str, epoch: int, work: WorkList, worker: str, keep_going: bool) -> None:
        files = work.files_of(worker)
        told = f"{worker} was lost while it read {', '.join(files)} in epoch {epoch} of '{name}'"
        if not keep_going:
            raise PeerLostError(
                f"{told}; with `sparsefleet launch --keep-going` others would read on"
            )
        _log.warning("%s: others go on with these from where it last reported", told)
        work.release(worker)

    def _forget(self, name: str, num_workers: int) -> None:
        """Lets go of epochs that all workers have left, or were lost in."""
        epochs = self._epochs[name]
        if len(epochs) < num_workers:
            return
        oldest = min(epoch for worker, epoch in epochs.items() if self._is_present(worker))
        for key in [key for key in self._lists if key[0] == name and key[1] < oldest]:
            unread = self._lists.pop(key).unread
            if unread:
                _log.warning(
                    "epoch %d of '%s' is over; not read to the end: %s", key[1], name, unread
                )
